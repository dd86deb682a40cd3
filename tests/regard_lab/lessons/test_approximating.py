"""The errors of cheaper attentions are those of the written formulas."""

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
    call = words_in_topics(4.0, 1, topics=4, count=16)
    mechanism, parameters = means_of_neighbours(4, 16)

    q = call.q[0, 0]  # the keys too, (16, HEAD_DIM)
    v = call.v[0, 0]
    exact = (q @ q.mT).softmax(-1) @ v
    mean_keys = torch.stack([rows.mean(0) for rows in q.split(4)])
    mean_values = torch.stack([rows.mean(0) for rows in v.split(4)])
    weights = (q @ mean_keys.mT).softmax(-1)  # (16, 4)
    error = float((weights @ mean_values - exact).norm() / exact.norm())

    assert math.isclose(output_error(call, mechanism, parameters, seed=0), error, rel_tol=1e-9)
    of_words = weights.repeat_interleave(4, 1) / 4
    torch.testing.assert_close(estimated_weights(call, mechanism, parameters), of_words)


def test_an_exponential_of_features_is_their_dot_product():
    call = words_in_topics(0.5, 0, topics=4, count=8)
    q = call.q[0, 0]  # the keys too
    features = torch.nn.functional.elu(q) + 1
    estimate = torch.zeros(8, 8, dtype=torch.float64)
    for query in range(8):
        for key in range(8):
            estimate[query, key] = features[query] @ features[key]

    true = (q @ q.mT).exp()
    best_factor = (estimate * true).sum() / (estimate**2).sum()
    error = float((best_factor * estimate - true).norm() / true.norm())
    errors = exponential_errors(call, LinearTransformer(), seed=0, draws=2)
    assert errors == pytest.approx((error, error))
