"""What several processes refuse, they refuse together and with a sentence."""

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from regard import distributed, top_keys
from regard.core.tensors import Stored
from regard.errors import ArgumentError, UnsupportedError
from several_processes.calls import SharedCall
from several_processes.pool import Pool


def call(options: dict[str, Any]) -> None:
    """A call that differs by process where an option is a list."""
    of_process = dict(options)
    for name, option in options.items():
        if isinstance(option, list):
            of_process[name] = option[dist.get_rank()]
    x = torch.randn(1, 2, 6, 4, requires_grad=of_process.pop("learning", False))
    distributed.attention_detail(x, x, x, dist.group.WORLD, **of_process)


def unread():
    """Read a statistic that was not requested."""
    x = torch.randn(1, 2, 6, 4)
    detail = distributed.attention_detail(
        x, x, x, dist.group.WORLD, want=("entropy", "log_sum_exp")
    )
    assert detail.entropy.shape == (1, 2, 6)
    return detail.received


def test_a_statistic_that_was_not_requested_is_not_read_as_none(pools):
    messages = pools(2).refusals(unread)
    said = (
        "RegardError: received was not requested; add it to want= (requested: entropy, log_sum_exp)"
    )
    assert messages == [said] * 2


def learning_from(name: str) -> None:
    x = torch.randn(1, 2, 6, 4, requires_grad=True)
    want = ("entropy", "received", "distance", "sink", "log_sum_exp", top_keys(3))
    detail = distributed.attention_detail(x, x, x, dist.group.WORLD, want=want, sink=0.5)
    statistic = detail.top_keys.weights if name == "top_keys" else getattr(detail, name)
    assert statistic.detach().isfinite().all()
    (detail.output.sum() + statistic.sum()).backward()


@pytest.mark.parametrize("name", ["entropy", "received", "distance", "sink", "top_keys"])
def test_a_statistic_that_has_no_gradient_is_no_constant_of_the_loss(name, pools):
    for message in pools(2).refusals(learning_from, name):
        assert message.startswith(
            f"UnsupportedError: the gradient of {name} is not computed over several processes"
        )


KEYS_OF_ALL = "the keys of all: (..., 6 or 1, 12 or 1)"
REFUSED_BY_1 = "process 1 refused the call: "
REFUSED_BY_0 = "process 0 refused the call: "


# What the first process says, and what the second one says: None where it says the same.
@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (
            {"pattern": ["causal", "full"]},
            "Process 1 has pattern full; process 0 has pattern causal",
            None,
        ),
        (
            {"learning": [True, False]},
            "gradients are needed on process 0 and not on the others",
            None,
        ),
        ({"softcap": [-1.0, 2.0]}, "softcap", f"ArgumentError: {REFUSED_BY_0}softcap"),
        (
            {"bias": [torch.zeros(1, 2, 6, 12), torch.zeros(1, 3, 6, 12)]},
            REFUSED_BY_1,
            "does not broadcast",
        ),
        ({"dropout": 0.1, "dropout_seed": [3, "a"]}, REFUSED_BY_1, "dropout_seed is 'a'"),
        ({"bias": [torch.zeros(6, 12), torch.zeros(6, 6)]}, KEYS_OF_ALL, None),
        (
            {"bias": [torch.zeros(5, 12), torch.zeros(6, 12)]},
            "the queries of this one and the keys",
            REFUSED_BY_0,
        ),
        ({"want": "weights"}, "each row would hold the keys of all", None),
        ({"mechanism": "random_feature(features=8, seed=0)"}, "cannot be merged", None),
        ({"layout": "spiral"}, "layout is 'spiral'; there are contiguous", None),
        ({"mechanism": "linear", "pattern": "causal_window(4)"}, "not causal_window", None),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_once_on_every_process(options, first, second, pools):
    began = time.monotonic()
    messages = pools(2).refusals(call, options)
    for message, words in zip(messages, (first, second or first), strict=True):
        assert words in message
    assert time.monotonic() - began < 10


def named(options) -> tuple[str, float]:
    """A refused call, and how long another one takes after it."""
    x = torch.randn(1, 2, 20 if dist.get_rank() else 6, 4)
    with pytest.raises((UnsupportedError, ArgumentError)) as refusal:
        distributed.attention_detail(x, x, x, dist.group.WORLD, **options)
    began = time.monotonic()
    distributed.attention(x, x, x, dist.group.WORLD, pattern="causal")
    return str(refusal.value), time.monotonic() - began


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"backend": "decode"},
            ("process 1 refused the call: backend", "for at most 16 queries, and there are 20"),
        ),
        ({"backend": "dense"}, ("backend 'dense' does not exist",) * 2),
        (
            {"backend": "native", "want": "entropy", "mechanism": "linear"},
            ("backend 'native' does not compute",) * 2,
        ),
    ],
)
def test_a_piece_that_no_backend_computes_is_refused_before_keys_are_sent(options, words, pools):
    for (message, seconds), expected in zip(pools(2).run(named, options), words, strict=True):
        assert expected in message
        assert seconds < 10


def forward_mode() -> None:
    x = torch.randn(1, 2, 6, 4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        distributed.attention(dual, dual, dual, dist.group.WORLD)


def transformed() -> None:
    rows = torch.randn(3, 1, 2, 6, 4)
    torch.func.vmap(lambda x: distributed.attention(x, x, x, dist.group.WORLD))(rows)


@pytest.mark.parametrize("function", [forward_mode, transformed])
def test_derivatives_that_do_not_reach_other_processes_are_refused(function, pools):
    assert all("stay within one process" in message for message in pools(2).refusals(function))


def compiled() -> list[str]:
    x = torch.randn(1, 2, 6, 4)
    names = []

    def noting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        names.extend(node.name for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    call = torch.compile(
        lambda x: distributed.attention(x + 1, x, x, dist.group.WORLD) * 2, backend=noting
    )
    assert torch.equal(call(x), distributed.attention(x + 1, x, x, dist.group.WORLD) * 2)
    return names


@pytest.mark.slow
def test_a_compiler_leaves_the_call_out_of_its_graph(pools):
    assert all(set(names) <= {"add", "mul"} for names in pools(2).run(compiled))


def with_mesh(kind: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "places"))
    alone = dist.new_group([0])
    x = torch.randn(1, 2, 6, 4)
    if kind == "stored":
        distributed.attention(x, Stored(x), Stored(x), dist.group.WORLD)
    processes = {"two dimensions": mesh, "a number": 4, "another group": alone}[kind]
    if "another" not in kind or dist.get_rank():
        distributed.attention(x, x, x, processes)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "two dimensions",
            "the mesh has 2 dimensions; sequences are divided over one of them: mesh['places']",
        ),
        (
            "a number",
            "mesh is an int; it needs to be a DeviceMesh of one dimension or a ProcessGroup",
        ),
        ("another group", "this process is not one of the group's"),
        ("stored", "takes k and v as tensors, not as a cache stores them"),
    ],
)
def test_processes_and_tensors_of_other_kinds_are_refused(kind, words, pools):
    first, *others = pools(4).refusals(with_mesh, kind)
    assert all(words in message for message in (others if "another" in kind else [first, *others]))
    assert bool(first) == ("another" not in kind)


def test_processes_that_do_not_know_each_other():
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(UnsupportedError, match="init_process_group"):
        distributed.attention(x, x, x, None)


@pytest.mark.parametrize("form", ["auto", "state"])
def test_second_derivatives_are_refused(form, pools):
    for message in pools(2).refusals(twice, form):
        assert "no second derivatives" in message


def twice(form: str) -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    output = distributed.attention(
        x, x, x, dist.group.WORLD, form=form, mechanism="linear", pattern="causal"
    )
    torch.autograd.grad(output.sum(), x, create_graph=True)


def repeat(case: SharedCall, dying: int) -> None:
    """Calls attention again and again; one process is killed in the midst."""
    x = torch.randn(1, 2, 64, 8)
    for step in range(10_000):
        if step == 20 and dist.get_rank() == dying:
            os.kill(os.getpid(), 9)
        distributed.attention(x, x, x, dist.group.WORLD, form="ring")


def test_killing_one_of_four_ends_the_others_with_a_sentence_within_the_timeout():
    pool = Pool(4, timeout=8)
    began = time.monotonic()
    for end in pool.ends:
        end.send((repeat, (None, 2)))
    for rank in (0, 1, 3):
        assert pool.ends[rank].poll(30)
        _, message, _ = pool.ends[rank].recv()
        assert "lost another one while" in message
        assert "Start all again" in message
    assert time.monotonic() - began < 30
    pool.ends[2].close()
    pool.ends = [end for rank, end in enumerate(pool.ends) if rank != 2]
    pool.close()
