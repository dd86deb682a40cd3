"""Under torch.autocast a call casts what PyTorch's own attention casts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import regard as rg
from regard import bias as b
from regard.layers import caches
from regard.positions import Rotary

F16 = torch.float16
BF16 = torch.bfloat16
F32 = torch.float32
F64 = torch.float64
KINDS = [
    (F32, F32, F32),
    (F32, BF16, F16),
    (F16, F16, F16),
    (F64, F64, F64),
    (F64, F32, F32),
    (F32, F32, F64),
]


def drawn(*dtypes: torch.dtype) -> list[torch.Tensor]:
    """q, k and v of these dtypes."""
    shapes = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    pairs = zip(shapes, dtypes, strict=True)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape, dtype in pairs]


def dtype_of(call: Callable[[], torch.Tensor]) -> torch.dtype | None:
    """The dtype of a call's output, or None where it is refused."""
    try:
        return call().dtype
    except (rg.RegardError, RuntimeError):
        return None


@pytest.mark.parametrize("added", [None, F32, BF16], ids=str)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_call_has_the_dtype_of_torchs_own_attention(kinds, added):
    q, k, v = drawn(*kinds)
    bias = None if added is None else torch.randn(5, 7).to(added)
    if F64 in kinds and bias is not None:
        bias = bias.double()  # beside another bias torch's own call of float64 is refused

    def ours() -> torch.Tensor:
        return rg.attention(q, k, v, bias=bias)

    def of_detail() -> torch.Tensor:
        return rg.attention_detail(q, k, v, bias=bias).output

    def of_plan() -> torch.Tensor:
        return rg.plan_attention(q, k, v, bias=bias).run(q, k, v, bias=bias)

    def of_torch() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias)

    with torch.autocast("cpu", F16 if added == F32 else BF16):
        expected = dtype_of(of_torch)
        assert dtype_of(ours) == expected
        assert dtype_of(of_detail) == expected
        assert dtype_of(of_plan) == expected
        with torch.autocast("cpu", enabled=False):
            if len(set(kinds)) > 1:
                assert dtype_of(ours) is dtype_of(of_torch) is None
            else:
                assert dtype_of(ours) == kinds[0]


def test_what_is_computed_is_the_call_of_the_cast_tensors_and_gradients_come_back_in_the_dtype_given():
    leaves = [*drawn(F32, F32, F32), torch.randn(4, 5, 7, requires_grad=True)]
    q, k, v, bias = leaves
    cast = rg.attention(q.to(BF16), k.to(BF16), v.to(BF16), bias=bias.to(BF16))
    with torch.autocast("cpu", BF16):
        output = rg.attention(q, k, v, bias=bias)
    assert torch.equal(output, cast)
    expected = torch.autograd.grad(cast.float().square().sum(), leaves)
    gradients = torch.autograd.grad(output.float().square().sum(), leaves)
    assert [x.dtype for x in gradients] == [F32] * 4
    assert all(map(torch.equal, gradients, expected))


def test_a_float64_call_keeps_its_bias_and_a_bias_by_distance_is_never_rounded():
    q, k, v = drawn(F64, F64, F64)
    for bias in (torch.randn(5, 7), b.ALiBi()):
        plain = rg.attention(q, k, v, bias=bias)
        with torch.autocast("cpu", BF16):
            assert torch.equal(rg.attention(q, k, v, bias=bias), plain)


def test_the_plan_says_the_dtype_that_is_computed():
    q, k, v = drawn(F32, F32, F32)
    with torch.autocast("cpu", BF16):
        plan = rg.plan_attention(q, k, v)
    assert plan.problem.dtype == BF16
    with pytest.raises(rg.ArgumentError, match=r"made for dtype torch\.bfloat16"):
        plan.run(q, k, v)


@pytest.mark.parametrize("kind", [F32, BF16, F16, "int8"], ids=str)
def test_a_layer_and_its_cache_work_under_autocast(kind):
    layer = rg.MultiHeadAttention(16, 4, kv_heads=2, pattern="causal", positions=Rotary())
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        whole = layer(x)
        cache = layer.new_cache(2, dtype=kind)
        parts = torch.cat([layer(part, cache=cache) for part in x.split(2, dim=1)], dim=1)
    assert whole.dtype == parts.dtype == BF16
    # A few roundings to bfloat16 of numbers below 1, and int8's.
    assert (whole - parts).abs().max() <= 0.05


def test_keys_that_a_cache_stores_are_read_as_they_are():
    q, k, v = (x.detach() for x in drawn(F32, F32, F32))
    stored = caches.new_cache("dynamic", 2, 4, 8, dtype="int8").append(k, v)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        assert torch.equal(rg.attention(q, *stored), rg.attention(q.to(BF16), *stored))
