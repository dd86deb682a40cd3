"""Errors of cheaper attentions, compared with the written formulas."""

import math

import pytest
import torch

from regard.mechanisms import LinearTransformer
from regard_lab.teaching.approximating import (
    estimated_weights,
    exponential_errors,
    means_of_neighbours,
    output_error,
    words_in_topics,
)


def test_an_error_and_weights_are_those_of_the_written_formula():
    call, mixed = words_in_topics(4.0, 1, topics=4, count=16), means_of_neighbours(4, 16)
    x, v = call.q[0, 0], call.v[0, 0]
    exact = (x @ x.mT).softmax(-1) @ v
    groups = [torch.stack([rows.mean(0) for rows in one.split(4)]) for one in (x, v)]
    weights = (x @ groups[0].mT).softmax(-1)
    estimate = weights @ groups[1]
    expected = float((estimate - exact).norm() / exact.norm())
    assert math.isclose(output_error(call, *mixed, seed=0), expected, rel_tol=1e-9)
    torch.testing.assert_close(estimated_weights(call, *mixed), weights.repeat_interleave(4, 1) / 4)


def test_an_exponential_of_features_is_their_dot_product():
    call = words_in_topics(0.5, 0, topics=4, count=8)
    x = torch.nn.functional.elu(call.q[0, 0]) + 1
    estimate = torch.tensor([[float(a @ b) for b in x] for a in x], dtype=torch.float64)
    true = (call.q[0, 0] @ call.k[0, 0].mT).exp()
    fitted = estimate * (estimate * true).sum() / (estimate**2).sum()
    expected = float((fitted - true).norm() / true.norm())
    assert exponential_errors(call, LinearTransformer(), seed=0, draws=2) == pytest.approx((expected, expected))
