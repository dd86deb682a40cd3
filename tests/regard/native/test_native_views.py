"""Tensors stored as (batch, length, heads, dim) are computed where they lie: no call copies or transposes them."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg
from regard import patterns as p
from regard.backends.native.filling import Filled, describe, fill_gradients
from regard.backends.native.library import CGradients, load
from regard.backends.native.lowering import lower
from regard.core.call import make_problem

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built")


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations copy, or all in memory that they make."""

    def __init__(self, made: bool = False) -> None:
        super().__init__()
        self.made, self.numbers = made, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        new = isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in given
        copies = func._schema.name in ("aten::clone", "aten::copy_", "aten::_to_copy", "aten::cat", "aten::repeat")
        self.numbers += found.numel() if (new if self.made else copies) else 0
        return found


def copied(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str) -> tuple[torch.Tensor, int]:
    plan = rg.plan_attention(q, k, v, pattern=p.Causal(), backend=backend)
    plan.run(q, k, v)  # the first run makes the schedule
    with Numbers() as copies:
        output = plan.run(q, k, v)
    return output, copies.numbers


def test_native_copies_nothing_and_returns_what_transposes_back_without_a_copy():
    with torch.no_grad():
        fused_rows = torch.randn(2, 33, 8 + 2 + 2, 16)  # one projection of queries, keys and values
        q, k, v = (x.transpose(1, 2) for x in fused_rows.split([8, 2, 2], dim=2))
        output, numbers = copied(q, k, v, "native")
    assert numbers == 0
    assert output.transpose(1, 2).is_contiguous()
    assert output.transpose(1, 2).flatten(2).data_ptr() == output.data_ptr()


def test_the_count_sees_a_copy():
    with torch.no_grad():
        x = torch.randn(2, 9, 2, 32)[..., ::2].transpose(1, 2)  # its last axis is not dense
        assert copied(x, x, x, "native")[1] >= x.numel()


@pytest.mark.parametrize("lengths", [(70, 70), (1, 64)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(9)"])
def test_operands_by_length_and_head_are_not_copied(pattern, lengths):
    (q_len, k_len), dim = lengths, 16
    q, k, v = (torch.randn(2, n, heads, dim).transpose(1, 2) for n, heads in ((q_len, 8), (k_len, 4), (k_len, 4)))
    with torch.no_grad():
        plan = rg.plan_attention(q, k, v, pattern=pattern, backend="native")
        plan.run(q, k, v)
        with Numbers(made=True) as made:
            output = plan.run(q, k, v)
    assert output.numel() <= made.numbers < output.numel() + 64, "more than the output was made"
    assert output.transpose(1, 2).is_contiguous()
    assert torch.equal(output, plan.run(*(x.contiguous() for x in (q, k, v))))


# Offsets are counted in 64 bits


SHAPE = (3, 3, 3, 8)  # batch, heads, rows, dim
APART = 2**30 + 64  # numbers between neighbours on one axis: its last is more than 2^31 numbers behind its first
NAMES = ("q", "k", "v", "output", "grad", "dq", "dk", "dv")
NO_RESERVE = 0x4000  # MAP_NORESERVE: pages that nobody touches take no memory

Place = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def memory() -> torch.Tensor:
    room = mmap.mmap(-1, 4 * (2 * APART + 2**16), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(room, dtype=torch.float32)


def compute(place: Place, native) -> dict[str, torch.Tensor]:
    """A forward and a backward pass with a bias, every tensor of it put into memory by `place`."""
    draw = torch.Generator().manual_seed(1)
    names = dict(zip(NAMES, (place(torch.randn(SHAPE, generator=draw)) for _ in NAMES), strict=True))
    bias, dbias = place(torch.randn(3, 3, 3, 8, generator=draw)), place(torch.zeros(3, 3, 3, 8))
    q, k, v, output, grad, dq, dk, dv = names.values()
    problem = make_problem(q, k, v, pattern="causal")
    filled, lowered, sums = Filled(problem), lower(problem, range(3), [0]), torch.empty(3, 3, 3)
    call = filled.call
    call.first_key, call.keys, call.threads = 0, 3, 1
    call.schedules, call.schedule, call.log_sum_exp = len(lowered.schedules), lowered.address, sums.data_ptr()
    for into, x in zip(filled.tensors, (q, k, v, output), strict=True):
        describe(into, x)
    at = torch.arange(3) * bias.stride(0)
    call.bias.data, call.bias.at, call.bias.key = bias.data_ptr(), at.data_ptr(), 1
    _, call.bias.head, call.bias.row, _ = bias.stride()
    call.bias.size = sum(by * (size - 1) for by, size in zip(bias.stride(), SHAPE, strict=True)) + 1
    native.forward(filled.address)
    gradients: CGradients = fill_gradients(grad, None, [dq, dk, dv], dbias, False)
    native.backward(filled.address, gradients)
    return {**names, "log_sum_exp": sums, "dbias": dbias}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tensors_with_neighbours_far_apart_give_equal_bits(native, memory, axis):
    used = 0

    def far(x: torch.Tensor) -> torch.Tensor:
        nonlocal used
        strides = list(x.stride())
        strides[axis] = APART
        placed = memory.as_strided(x.shape, strides, used).copy_(x)
        used += 4096
        return placed

    found, expected = compute(far, native), compute(lambda x: x, native)
    assert found["q"].stride(axis) * 2 > 2**31
    for name, x in expected.items():
        assert torch.equal(found[name], x), name
