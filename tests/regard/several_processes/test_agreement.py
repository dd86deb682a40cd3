"""Processes agree on every number that an option holds, or refuse the call together with a sentence that names it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial, wraps
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import regard
from regard import bias, distributed
from regard import patterns as p
from regard.distributed import api


@dataclass
class Sizes:
    size: int
    rank: int = 0  # no function reads it, so it may differ

    def within(self, q_pos, k_pos):
        return self.far(q_pos - k_pos) < self.size

    def far(self, distances):
        return distances.abs()


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size: Any) -> None:
        self.size = size


class Less:
    def __init__(self, size: int) -> None:
        self.size = size

    def __gt__(self, other):
        return other < self.size


class Within(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor(size))

    def forward(self, q_pos, k_pos):
        return (q_pos - k_pos).abs() < self.size


class ByTable(bias.Bias):
    def __init__(self, scale: float) -> None:
        self.table = torch.arange(64.0) * scale

    def by_distance(self, distances, heads):
        return self.table[distances.abs()][None]


class Around:
    """An object that holds itself."""

    def __init__(self, size: int) -> None:
        self.size, self.around = size, self


def near(q_pos: torch.Tensor, k_pos: torch.Tensor, *, size: int) -> torch.Tensor:
    return (q_pos - k_pos).abs() < size


def of_module(size: int):
    """A function that reads a number of a module."""
    settings = ModuleType("settings")
    settings.size = size
    function = lambda a, b: (a - b).abs() < settings_of_test.size  # noqa: E731, F821
    return FunctionType(function.__code__, {"settings_of_test": settings})


def functions(size: int, rank: int) -> dict[str, Any]:
    """Functions of Where that read `size` in many ways; objects hold `rank` too, which no function reads."""
    sizes, alike, of = Sizes(size, rank), Sizes(size), SimpleNamespace(sizes=Sizes(size, rank), rank=rank)
    slotted, held, array, items = Slotted(size), Slotted(torch.tensor(size)), np.array([size]), {"sizes": [sizes]}
    less, around, some, part = Less(size), Around(size), frozenset({"a", "b", size}), Fraction(size, 7)
    return {
        "an attribute": lambda a, b: (a - b).abs() < sizes.size,
        "an attribute of an attribute": lambda a, b: (a - b).abs() < of.sizes.size,
        "an attribute by its name": lambda a, b: (a - b).abs() < getattr(alike, "size"),  # noqa: B009
        "a slot": lambda a, b: (a - b).abs() < slotted.size,
        "a tensor in an object": lambda a, b: (a - b).abs() < held.size,
        "an array": lambda a, b: (a - b).abs() < int(array[0]),
        "a method": sizes.within,
        "a method, as part": partial(Sizes.within, sizes),
        "an item": lambda a, b: (a - b).abs() < items["sizes"][0].size,
        "an operator": lambda a, b: less > (a - b).abs(),
        "an object around itself": lambda a, b: (a - b).abs() < around.around.size,
        "a set": lambda a, b: near(a, b, size=max(x for x in some if isinstance(x, int))),
        "a fraction": lambda a, b: (a - b).abs() < float(7 * part),
        "a module": of_module(size),
        "a module of torch": Within(size),
        "a function inside another": wraps(near)(lambda a, b: near(a, b, size=size)),
        "a cached function": lru_cache(lambda a, b: (a - b).abs() < size),
    }


def learned(size: int) -> dict[str, dict[str, Any]]:
    """Options that hold tensors, by the name that a refusal names."""
    weights = bias.T5Relative(2, buckets=8, max_distance=20)
    with torch.no_grad():
        weights.weight.copy_(torch.arange(16.0).view(8, 2) / size)
    score = {"mechanism": "softmax(general(4, 4))", "parameters": {"weight": torch.full((2, 4, 4), size / 7)}}
    return {
        "sink": {"sink": torch.tensor([0.5, size])},
        "bias": {"bias": weights},
        "bias of one's own": {"bias": ByTable(size)},
        "bias for all queries": {"bias": torch.full((12,), float(size))},
        "parameters": score,
    }


def call(options: dict[str, Any]) -> torch.Tensor:
    q, k, v = (torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    return distributed.attention(q, k, v, dist.group.WORLD, **options)


def differing(what: str) -> None:
    rank = dist.get_rank()
    call({"pattern": p.Where(functions(2 + rank, 0)[what])} if what in functions(2, 0) else learned(2 + rank)[what])


@pytest.mark.parametrize("what", [*functions(2, 0), *learned(2)])
def test_a_number_that_an_option_holds_and_that_differs_is_refused_with_the_name_of_the_option(what, pools):
    option = "pattern" if what in functions(2, 0) else what.split()[0]
    for message in pools(2).refusals(differing, what):
        assert "process 1 and process 0 make different calls" in message
        there, here = message.split("Process 1 has ")[1].split("; process 0 has ")
        assert there.startswith(option)
        assert here.startswith(option)


def equal() -> bool:
    """Call with options that are equal on both processes, or that belong to one."""
    rank = dist.get_rank()
    for function in functions(3, rank).values():
        call({"pattern": p.Where(function)})
    for options in learned(3).values():
        call(options)
    call({"bias": torch.full((6, 12), float(rank))})  # of the queries of this process
    return True


def test_equal_numbers_are_one_call_and_attributes_that_no_function_reads_may_differ(pools):
    assert pools(2).run(equal) == [True, True]


def stepped() -> list[str]:
    """What each call says while one process changes a weight in ways that PyTorch counts and does not count."""
    sink, said = torch.zeros(2), []
    sizes = Sizes(3)
    pattern = p.Where(sizes.within)
    for change in range(4):
        if change and dist.get_rank():
            match change:
                case 1:
                    sink.data[0] = 1.0  # its _version stays the same
                case 2:
                    sink.zero_()
                case 3:
                    sizes.size = 4
        try:
            call({"sink": sink, "pattern": pattern})
            said.append("")
        except regard.RegardError as error:
            said.append(str(error).split("Process 1 has ")[1].split()[0])
    return said


def test_a_number_that_changed_since_the_last_call_is_compared_again(pools):
    assert pools(2).run(stepped) == [["", "sink", "", "pattern"]] * 2


def agreed_on(options: dict[str, Any], monkeypatch) -> tuple[Any, ...]:
    """What a process tells the others before a call, without the tensors' places and lengths."""
    told = []
    agree = api.agree
    monkeypatch.setattr(
        api, "agree", lambda *args, **more: told.append((args[2], more["of_bias"])) or agree(*args, **more)
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(1, 2, 12, 4)
        distributed.attention(x, x, x, dist.group.WORLD, **options)
    finally:
        dist.destroy_process_group()
        monkeypatch.setattr(api, "agree", agree)
    return told[0]


@pytest.mark.parametrize("what", [*functions(2, 0), *learned(2)])
def test_what_a_process_tells_the_others_depends_on_every_number_of_an_option(what, monkeypatch):
    made = [{"pattern": p.Where(functions(size, size)[what])} if what in functions(2, 0) else learned(size)[what]
            for size in (2, 3)]  # fmt: skip
    first, again, other = (agreed_on(options, monkeypatch) for options in (made[0], made[0], made[1]))
    assert first == again != other
