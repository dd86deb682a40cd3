"""The formula of all mechanisms of features: patterns, positions, statistics, and queries without features."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.mechanisms import RandomFeature
from regard.mechanisms.base import STATISTICS
from regard.mechanisms.features import Features, Kernelised


@dataclass(frozen=True)
class Squared(Kernelised):
    """φ(x) = x² + 0.1, the simplest there is; `lowered` ones give part of it as logarithms."""

    lowered: bool = False
    statistics = frozenset(STATISTICS)

    def lift(self, q, k, scale, parameters):
        q_features = q.square() + 0.1
        k_features = k.square() + 0.1
        if not self.lowered:
            return Features(q_features, k_features)
        q_log = q.square().sum(-1) - 700
        k_log = k.square().sum(-1) - 700
        q_features = q_features * (-q_log - 700).exp()[..., None]
        k_features = k_features * (-k_log - 700).exp()[..., None]
        return Features(q_features, k_features, k_log, q_log=q_log)


def tensors(k_len: int = 11) -> list[torch.Tensor]:
    q = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    k = torch.randn(2, 2, k_len, 5, dtype=torch.float64)
    v = torch.randn(2, 2, k_len, 3, dtype=torch.float64)
    return [q, k, v]


def squared(x: torch.Tensor) -> np.ndarray:
    return x.numpy() ** 2 + 0.1


STARTS = torch.tensor([-3, 6])
CASES: dict[str, tuple[p.Pattern, int | torch.Tensor | None]] = {
    "ends align": (p.Causal(), None),
    "before the first key": (p.Causal(), -3),
    "beyond the last key": (p.Causal(), 9),
    "each row its start": (p.Causal() & p.KeySpan(1, 10), STARTS),
    "each row its padding": (p.KeySpan(torch.tensor([2, 5]), torch.tensor([9, 5])), None),
    "documents by row": (p.SameDocument(torch.tensor([[0] * 5 + [1] * 6, [0, 1] * 5 + [0]])), None),
}


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize(("pattern", "q_start"), CASES.values(), ids=CASES)
def test_the_formula_holds_for_every_pattern_and_position(pattern, q_start, lowered):
    q, k, v = tensors()
    options = {"want": ["log_sum_exp", "weights", "received"], "backend": "reference"}
    detail = rg.attention_detail(
        q, k, v, mechanism=Squared(lowered), pattern=pattern, q_start=q_start, **options
    )

    products = squared(q) @ squared(k).repeat(3, 1).swapaxes(-1, -2)
    products = products * pattern.dense(7, 11, q_start=q_start).numpy()
    sums = products.sum(-1)
    weights = products / np.where(sums > 0, sums, 1)[..., None]
    with np.errstate(divide="ignore"):
        log_sum_exp = np.log(sums) - (1400 if lowered else 0)
    output = weights @ v.numpy().repeat(3, 1)
    np.testing.assert_allclose(detail.output, output, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(detail.weights, weights, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(detail.received, weights.sum(2), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(detail.log_sum_exp, log_sum_exp, rtol=1e-10, atol=1e-10)


class Cut(Kernelised):
    """φ(x) = max(x, 0), which may be 0 altogether."""

    statistics = frozenset(STATISTICS)

    def lift(self, q, k, scale, parameters):
        return Features(q.relu(), k.relu())


def test_a_query_whose_features_are_all_0_is_an_empty_row():
    q, k, v = tensors()
    q = q.abs()
    q[:, :, 3] *= -1
    for x in (q, k, v):
        x.requires_grad_()
    detail = rg.attention_detail(q, k, v, mechanism=Cut(), want="log_sum_exp", backend="reference")
    assert (detail.output[:, :, 3] == 0).all()
    assert (detail.log_sum_exp[:, :, 3] == -math.inf).all()
    assert (detail.output[:, :, 4:] != 0).all()
    (detail.output.sum() + detail.log_sum_exp[:, :, 4:].sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_top_keys_of_weights_below_zero_are_still_ranked():
    q, k, v = tensors(k_len=3)
    options = {
        "mechanism": RandomFeature(1, sigma=0.3),
        "want": ["weights", rg.top_keys(5)],
        "backend": "reference",
    }
    detail = rg.attention_detail(q, k, v, **options)
    assert (detail.weights < -1).any()
    weights, indices = detail.weights.sort(-1, descending=True)
    assert torch.equal(detail.top_keys.indices[..., :3], indices)
    assert torch.equal(detail.top_keys.weights[..., :3], weights)
    assert (detail.top_keys.indices[..., 3:] == -1).all()
