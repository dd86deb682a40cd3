"""Tensors are computed where they lie: no call copies or transposes them, and offsets are counted in 64 bits."""

import mmap
from collections.abc import Callable

import pytest
import torch
from measuring import NewNumbers
from torch.utils._pytree import tree_leaves

import regard as rg
from regard.backends.native.filling import BiasNumbers, KernelCall, describe, fill_gradients
from regard.backends.native.library import load
from regard.backends.native.lowering import lower
from regard.core.call import make_problem
from regard.core.tensors import Stored

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built")


@pytest.mark.parametrize(("q_len", "k_len"), [(70, 70), (1, 64)])
@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(9)"])
def test_native_copies_nothing_and_returns_what_transposes_back_without_a_copy(
    pattern, q_len, k_len
):
    """Tensors stored as (batch, length, heads, dim), as one projection of queries, keys and values."""
    projected = torch.randn(2, k_len, 8 + 4 + 4, 16)
    q, k, v = (x.transpose(1, 2) for x in projected.split([8, 4, 4], dim=2))
    q = q[:, :, :q_len]
    plan = rg.plan_attention(q, k, v, pattern=pattern, backend="native")
    with torch.no_grad():
        plan.run(q, k, v)  # the first run makes the schedule
        with NewNumbers() as numbers:
            output = plan.run(q, k, v)
        dense = plan.run(*(x.contiguous() for x in (q, k, v)))
    assert output.numel() <= numbers.made < output.numel() + 64, "more than the output was made"
    assert output.transpose(1, 2).flatten(2).data_ptr() == output.data_ptr()
    assert torch.equal(output, dense)


def test_what_a_call_points_at_lives_until_it_is_computed():
    """Copies of tensors whose last axis is not dense, and of scales in another dtype."""
    q = torch.randn(2, 2, 8, 3).mT
    stored = [
        Stored(torch.ones(2, 1, 8, 5, dtype=torch.int8).mT, torch.rand(2, 1, 5, 1).double())
        for _ in range(2)
    ]
    kernel_call = KernelCall(make_problem(q, *stored))
    kernel_call.write_tensors(q, *stored, torch.empty(2, 2, 3, 8))
    alive = {x.data_ptr() for x in tree_leaves(kernel_call.borrowed)}
    struct = kernel_call.struct
    for tensor_struct in (struct.q, struct.k, struct.k_scale, struct.v, struct.v_scale):
        assert tensor_struct.data in alive


# Offsets are counted in 64 bits


SHAPE = (3, 3, 3, 8)  # batch, heads, rows, dim
# Numbers between neighbours on one axis: its last is more than 2^31 numbers behind its first.
APART = 2**30 + 64
NO_RESERVE = 0x4000  # MAP_NORESERVE: pages that are never written take no memory

Place = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def memory() -> torch.Tensor:
    size = 4 * (2 * APART + 2**16)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(pages, dtype=torch.float32)


def compute(place: Place, native) -> dict[str, torch.Tensor]:
    """A forward and a backward pass with a bias, every tensor of it put into memory by `place`."""
    draw = torch.Generator().manual_seed(1)

    def placed() -> torch.Tensor:
        return place(torch.randn(SHAPE, generator=draw))

    q, k, v, output, grad, dq, dk, dv, bias = (placed() for _ in range(9))
    dbias = place(torch.zeros(SHAPE))
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
    numbers = BiasNumbers.of_pairs(bias[..., :3], 3)
    numbers.describe(struct.bias)
    kernel_call.borrowed.append(numbers)
    native.forward(kernel_call.address)
    gradients = fill_gradients(grad, None, [dq, dk, dv], dbias, False)
    native.backward(kernel_call.address, gradients)
    results = {"output": output, "log_sum_exp": sums}
    return results | {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tensors_with_neighbours_far_apart_give_equal_bits(native, memory, axis):
    used = 0

    def far_apart(x: torch.Tensor) -> torch.Tensor:
        nonlocal used
        strides = list(x.stride())
        strides[axis] = APART
        placed = memory.as_strided(x.shape, strides, used).copy_(x)
        used += 4096
        return placed

    found = compute(far_apart, native)
    expected = compute(lambda x: x, native)
    assert found["dq"].stride(axis) * 2 > 2**31
    for name, x in expected.items():
        assert torch.equal(found[name], x), name
