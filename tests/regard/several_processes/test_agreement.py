"""Processes agree on every number that an option holds, or refuse the call together and name the option."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial, wraps
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
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


def with_default(size: int) -> FunctionType:
    """A function with this default of a keyword."""
    made = FunctionType(near.__code__, near.__globals__)
    made.__kwdefaults__ = {"size": size}
    return made


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
        "code": (lambda a, b: a >= b) if size == 2 else (lambda a, b: a <= b),
        "a keyword of a part": partial(near, size=size),
        "a keyword's default": with_default(size),
    }


def options(size: int) -> dict[str, dict[str, Any]]:
    """Options whose texts are alike and whose numbers are not; their names begin with that of the option."""
    weights = bias.T5Relative(2, buckets=8, max_distance=20)
    with torch.no_grad():
        weights.weight.copy_(torch.arange(16.0).view(8, 2) / size)
    score = {"mechanism": "softmax(general(4, 4))", "parameters": {"weight": torch.full((2, 4, 4), size / 7)}}
    return {
        "sink": {"sink": torch.tensor([0.5, size])},
        "bias": {"bias": weights},
        "bias of one's own": {"bias": ByTable(size)},
        "bias for all queries": {"bias": torch.full((12,), float(size))},
        "bias with slopes": {"bias": bias.ALiBi((0.1, size))},
        "parameters": score,
        "q_start": {"pattern": "causal", "q_start": torch.tensor([size])},
        "sink as a number": {"sink": float(size)},
        "pattern of documents": {"pattern": p.Causal() & p.SameDocument(torch.arange(12) // size)},
        "pattern with a mask": {"pattern": p.PerHead([p.Full(), ~p.Explicit(torch.ones(12, 12).tril(size).bool())])},
        "pattern of spans": {"pattern": p.KeySpan(torch.tensor([size]), None)},
    }


def call(options: dict[str, Any]) -> torch.Tensor:
    q, k, v = (torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    return distributed.attention(q, k, v, dist.group.WORLD, **options)


def every(size: int, rank: int = 0) -> dict[str, dict[str, Any]]:
    of_functions = {what: {"pattern": p.Where(function)} for what, function in functions(size, rank).items()}
    return of_functions | options(size)


def differing() -> dict[str, str]:
    """The message of each call whose number differs between the processes."""
    found = {}
    for what, given in every(2 + dist.get_rank()).items():
        try:
            call(given)
            found[what] = ""
        except regard.RegardError as error:
            found[what] = str(error)
    return found


def test_a_number_that_an_option_holds_and_that_differs_is_refused_with_the_name_of_the_option(pools):
    for messages in pools(2).run(differing):
        for what, message in messages.items():
            assert "process 1 and process 0 make different calls" in message, what
            option = "pattern" if what in functions(2, 0) else what.split()[0]
            there, here = message.split("Process 1 has ")[1].split("; process 0 has ")
            assert there.startswith(option), what
            assert here.startswith(option), what


def equal() -> bool:
    """Call with options that are equal on both processes, or that belong to one."""
    rank = dist.get_rank()
    for given in every(3, rank).values():
        call(given)
    copies = [near.__code__.replace() for _ in range(1 + 50 * rank)]  # elsewhere in memory
    call({"pattern": p.Where(partial(FunctionType(copies[-1], globals()), size=3))})
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


def test_what_processes_compare_depends_on_every_number_of_an_option():
    """In one process, where a fault can be planted."""
    for what in every(2):
        first, again, other = ([api.contents(x) for x in every(size)[what].values()] for size in (2, 2, 3))
        assert first == again != other, what
