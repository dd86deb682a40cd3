"""Under torch.autocast a call casts what PyTorch's own attention casts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import regard as rg
from regard import bias as b
from regard.layers import caches
from regard.positions import Rotary

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SIZES = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
KINDS = [
    (F32, F32, F32),
    (F32, BF16, F16),
    (F16, F16, F16),
    (F64, F64, F64),
    (F64, F32, F32),
    (F32, F32, F64),
]


def made(kinds: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    return [
        torch.randn(size).to(kind).requires_grad_() for size, kind in zip(SIZES, kinds, strict=True)
    ]


def dtype_of(call: Callable[[], torch.Tensor]) -> torch.dtype | None:
    """The dtype of a call's output, or None where it is refused."""
    try:
        return call().dtype
    except (rg.RegardError, RuntimeError):
        return None


@pytest.mark.parametrize("added", [None, F32, BF16], ids=str)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_call_has_the_dtype_of_torchs_own_attention(kinds, added):
    q, k, v = made(kinds)
    amp = F16 if added == F32 else BF16
    bias = None if added is None else torch.randn(5, 7).to(added)
    if F64 in kinds and bias is not None:
        bias = bias.double()  # beside another bias torch's own call of float64 is refused
    ours, theirs = (
        lambda: rg.attention(q, k, v, bias=bias),
        lambda: F.scaled_dot_product_attention(q, k, v, bias),
    )
    with torch.autocast("cpu", amp):
        wanted = dtype_of(theirs)
        assert dtype_of(ours) == wanted
        assert dtype_of(lambda: rg.attention_detail(q, k, v, bias=bias).output) == wanted
        assert (
            dtype_of(lambda: rg.plan_attention(q, k, v, bias=bias).run(q, k, v, bias=bias))
            == wanted
        )
        with torch.autocast("cpu", enabled=False):
            if len(set(kinds)) > 1:
                assert dtype_of(ours) is dtype_of(theirs) is None
            else:
                assert dtype_of(ours) == kinds[0]


def test_what_is_computed_is_the_call_of_the_cast_tensors_and_gradients_come_back_in_the_dtype_given():
    q, k, v = made((F32,) * 3)
    bias = torch.randn(4, 5, 7, requires_grad=True)
    plain = rg.attention(*(x.to(BF16) for x in (q, k, v)), bias=bias.to(BF16))
    with torch.autocast("cpu", BF16):
        output = rg.attention(q, k, v, bias=bias)
    assert torch.equal(output, plain)
    wanted, found = (
        torch.autograd.grad(x.float().square().sum(), (q, k, v, bias)) for x in (plain, output)
    )
    assert [x.dtype for x in found] == [F32] * 4
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_float64_call_keeps_its_bias_and_a_bias_by_distance_is_never_rounded():
    q, k, v = made((F64,) * 3)
    bias = torch.randn(5, 7)
    for added in (bias, b.ALiBi()):
        plain = rg.attention(q, k, v, bias=added)
        with torch.autocast("cpu", BF16):
            assert torch.equal(rg.attention(q, k, v, bias=added), plain)


def test_the_plan_says_the_dtype_that_is_computed():
    q, k, v = made((F32,) * 3)
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
    assert (
        whole - parts
    ).abs().max() <= 0.05  # a few roundings to bfloat16 of numbers below 1, and int8's


def test_keys_that_a_cache_stores_are_read_as_they_are():
    q, k, v = (x.detach() for x in made((F32,) * 3))
    stored = next(caches.new_cache("dynamic", 2, 4, 8, dtype="int8").append(k, v) for _ in range(1))
    with torch.no_grad(), torch.autocast("cpu", BF16):
        assert torch.equal(rg.attention(q, *stored), rg.attention(q.to(BF16), *stored))
