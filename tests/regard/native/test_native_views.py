"""Tensors stored as (batch, length, heads, dim) are computed where they lie: no call copies or transposes them."""

import mmap
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg
from regard.backends.native.filling import KernelCall, describe, fill_gradients
from regard.backends.native.library import CGradients, load
from regard.backends.native.lowering import lower
from regard.core.call import make_problem

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built")


class Numbers(TorchDispatchMode):
    """Counts the numbers in memory that operations make."""

    made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        new = isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in given
        self.made += found.numel() if new else 0
        return found


def computed(plan: rg.Plan, *qkv: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The output of a plan, and how many numbers a run makes after the first, which makes the schedule."""
    with torch.no_grad():
        plan.run(*qkv)
        with Numbers() as numbers:
            output = plan.run(*qkv)
    return output, numbers.made


@pytest.mark.parametrize("lengths", [(70, 70), (1, 64)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(9)"])
def test_native_copies_nothing_and_returns_what_transposes_back_without_a_copy(pattern, lengths):
    (q_len, k_len), dim = lengths, 16
    rows = torch.randn(2, k_len, 8 + 4 + 4, dim)  # one projection of queries, keys and values
    q, k, v = (x.transpose(1, 2) for x in rows.split([8, 4, 4], dim=2))
    plan = rg.plan_attention(q[:, :, :q_len], k, v, pattern=pattern, backend="native")
    output, made = computed(plan, q[:, :, :q_len], k, v)
    assert output.numel() <= made < output.numel() + 64, "more than the output was made"
    assert output.transpose(1, 2).flatten(2).data_ptr() == output.data_ptr()
    assert torch.equal(output, plan.run(*(x.contiguous() for x in (q[:, :, :q_len], k, v))))


# Offsets are counted in 64 bits


SHAPE = (3, 3, 3, 8)  # batch, heads, rows, dim
# numbers between neighbours on one axis: its last is more than 2^31 numbers behind its first
APART = 2**30 + 64
NAMES = ("q", "k", "v", "output", "grad", "dq", "dk", "dv")
NO_RESERVE = 0x4000  # MAP_NORESERVE: pages that nobody touches take no memory

Place = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def memory() -> torch.Tensor:
    room = mmap.mmap(
        -1, 4 * (2 * APART + 2**16), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    )
    return torch.frombuffer(room, dtype=torch.float32)


def compute(place: Place, native) -> dict[str, torch.Tensor]:
    """A forward and a backward pass with a bias, every tensor of it put into memory by `place`."""
    draw = torch.Generator().manual_seed(1)
    names = dict(
        zip(NAMES, (place(torch.randn(SHAPE, generator=draw)) for _ in NAMES), strict=True)
    )
    bias = place(torch.randn(3, 3, 3, 8, generator=draw))
    dbias = place(torch.zeros(3, 3, 3, 8))
    q, k, v, output, grad, dq, dk, dv = names.values()
    problem = make_problem(q, k, v, pattern="causal")
    kernel_call = KernelCall(problem)
    lowered = lower(problem, range(3), [0])
    sums = torch.empty(3, 3, 3)
    struct = kernel_call.struct
    struct.first_key = 0
    struct.keys = 3
    struct.threads = 1
    struct.schedules = len(lowered.schedules)
    struct.schedule = lowered.address
    struct.log_sum_exp = sums.data_ptr()
    for tensor_struct, x in zip(kernel_call.tensors, (q, k, v, output), strict=True):
        describe(tensor_struct, x)
    by_batch, by_head, by_row, _ = bias.stride()
    first_entries = torch.arange(3) * by_batch
    struct.bias.data = bias.data_ptr()
    struct.bias.at = first_entries.data_ptr()
    struct.bias.head = by_head
    struct.bias.row = by_row
    struct.bias.key = 1
    extents = [by * (size - 1) for by, size in zip(bias.stride(), SHAPE, strict=True)]
    struct.bias.size = sum(extents) + 1
    native.forward(kernel_call.address)
    gradients: CGradients = fill_gradients(grad, None, [dq, dk, dv], dbias, False)
    native.backward(kernel_call.address, gradients)
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
