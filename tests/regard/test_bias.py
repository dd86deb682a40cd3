"""ALiBi's slopes are the paper's; T5's buckets follow the rule of its code, and learn by its gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import regard as rg
from regard.bias import ALiBi, T5Relative
from regard.testing import answer, make_qkv

PRINTED = {  # the paper's own series for 8 heads, and the rule of its code for 6 and 12
    8: [2.0**-n for n in range(1, 9)],
    6: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3],
    12: [2.0**-n for n in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5],
    1: [2.0**-8],
}


@pytest.mark.parametrize("heads", PRINTED)
def test_slopes_are_the_papers(heads):
    told = -ALiBi().by_distance(torch.tensor([1]), heads)[:, 0]
    np.testing.assert_allclose(told.numpy(), PRINTED[heads], rtol=1e-15)


def test_the_bias_falls_with_the_distance_on_both_sides():
    distances = torch.tensor([-3, 0, 2])
    assert ALiBi([0.5, 2]).by_distance(distances, 2).tolist() == [[-1.5, 0, -1], [-6, 0, -4]]


def test_it_is_a_value():
    assert ALiBi() == ALiBi()
    assert hash(ALiBi([1, 2])) == hash(ALiBi((1.0, 2.0)))
    assert ALiBi([1]) != ALiBi()
    assert str(ALiBi([0.5])) == "ALiBi([0.5])"


@pytest.mark.parametrize("slopes", [[float("nan")], [True], ["1"], [1, float("inf")]])
def test_a_slope_that_is_no_finite_number_is_refused(slopes):
    with pytest.raises(rg.ArgumentError, match="finite number"):
        ALiBi(slopes)


def test_another_number_of_heads_is_refused():
    q, k, v = make_qkv(heads=4, kv_heads=2)
    for count in (1, 3, 5):
        with pytest.raises(rg.ShapeError, match=r"slopes? and the call 4 query heads; give one for each"):
            rg.attention(q, k, v, bias=ALiBi([0.5] * count))
    with pytest.raises(rg.ShapeError, match="has 2 heads and the call 4"):
        rg.attention(q, k, v, bias=T5Relative(2))


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The rule in words: half the buckets for each side; half of a side for single distances; the rest by logarithm."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        far = abs(distance)
    else:
        far = max(0, -distance)
    exact = buckets // 2
    if far < exact:
        return first + far
    # in float32, as T5 computes it
    share = np.log(np.float32(far) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return first + min(buckets - 1, exact + int(share * np.float32(buckets - exact)))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16), (31, 100), (4, 2000)])
def test_every_distance_falls_into_the_bucket_of_the_rule(buckets, max_distance, bidirectional):
    distances = torch.arange(-2200, 2201)
    told = T5Relative(3, buckets, max_distance, bidirectional).bucket(distances)
    assert told.tolist() == [bucket(d, buckets, max_distance, bidirectional) for d in distances.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_it_learns_gets_the_gradient_of_the_formula(dtype):
    torch.manual_seed(3)
    q, k, v = make_qkv(dtype=dtype)
    bias = T5Relative(heads=6, buckets=8, max_distance=6).to(dtype)
    grad = torch.randn(2, 6, 7, 13, dtype=dtype)
    rg.attention(q, k, v, pattern="causal", bias=bias, backend="reference").backward(grad)
    at = (np.arange(11) - (4 + np.arange(7)[:, None])).tolist()
    buckets = np.array([[bucket(d, 8, 6, True) for d in row] for row in at])
    added = bias.weight.detach().double().numpy()[buckets].transpose(2, 0, 1)[None]
    expected = answer(q, k, v, np.array(at) <= 0, scale=5**-0.5, bias=added, grad_output=grad)
    by_bucket = np.stack([expected.dbias[0][:, buckets == one].sum(1) for one in range(8)])
    np.testing.assert_allclose(
        bias.weight.grad.numpy(), by_bucket, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-4
    )


def test_a_frozen_one_does_not_learn_and_may_be_fused():
    q, k, v = make_qkv()
    bias = T5Relative(6).requires_grad_(False)
    assert not bias.learns
    assert rg.plan_attention(q, k, v, bias=bias, backend="fused").backend == "fused"
    with pytest.raises(rg.UnsupportedError, match="give a bias no gradient"):
        rg.plan_attention(q, k, v, bias=T5Relative(6), backend="fused")


@pytest.mark.parametrize("sizes", [{"heads": 0}, {"heads": 1, "buckets": 3}, {"heads": 1, "max_distance": 8}])
def test_sizes_that_leave_a_distance_no_bucket_are_refused(sizes):
    with pytest.raises(rg.ArgumentError, match="needs 1 head or more, 2 buckets"):
        T5Relative(**sizes)
