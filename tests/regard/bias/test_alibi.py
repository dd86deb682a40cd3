"""ALiBi's slopes are the paper's, and its bias is minus the slope times the distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import regard as rg
from regard.bias import ALiBi
from regard.testing import Budget, answer, make_qkv

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


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("q_start", [None, 5])
def test_attention_with_it_equals_the_oracle(backend, q_start):
    q, k, v = make_qkv()
    start = 4 if q_start is None else q_start
    i, j = start + np.arange(7)[:, None], np.arange(11)
    bias = np.stack([-slope * np.abs(j - i) for slope in PRINTED[6]])[None]
    expected = answer(q, k, v, j <= i, scale=5**-0.5, bias=bias)
    found = rg.attention(q, k, v, pattern="causal", bias=ALiBi(), backend=backend, q_start=q_start)
    budget = Budget.of(q, k, v, torch.float32, scale=5**-0.5, bias=torch.from_numpy(bias))
    assert budget.share("output", found, expected.output) <= 1


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
    q, k, v = make_qkv()
    with pytest.raises(rg.ShapeError, match="2 slopes and the call 6 query heads"):
        rg.attention(q, k, v, bias=ALiBi([1, 2]))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_another_number_of_slopes_than_heads_is_refused(count):
    q, k, v = make_qkv(heads=4, kv_heads=2)
    with pytest.raises(rg.ShapeError, match="give one for each"):
        rg.attention(q, k, v, bias=ALiBi([0.5] * count))
