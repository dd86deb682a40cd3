"""The formula of all mechanisms of features: patterns, positions, statistics, and keys that nobody may see."""

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
    """φ(x) = x² + 0.1, the simplest there is; `lowered` ones hand over half of it as logarithms."""

    lowered: bool = False
    statistics = frozenset(STATISTICS)

    def lift(self, q, k, scale, parameters):
        of_q, of_k = q.square() + 0.1, k.square() + 0.1
        if not self.lowered:
            return Features(of_q, of_k)
        q_log, k_log = (x.square().sum(-1) - 700 for x in (q, k))
        return Features(
            of_q * (-q_log - 700).exp()[..., None], of_k * (-k_log - 700).exp()[..., None], k_log, q_log=q_log
        )


def tensors(k_len: int = 11) -> list[torch.Tensor]:
    shapes = (2, 6, 7, 5), (2, 2, k_len, 5), (2, 2, k_len, 3)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def squared(x: torch.Tensor) -> np.ndarray:
    return x.numpy() ** 2 + 0.1


STARTS = torch.tensor([-3, 6])
CASES = {
    "ends align": ({"pattern": "causal"}, lambda b, i, j: j <= i + 4),
    "before the first key": ({"pattern": "causal", "q_start": -3}, lambda b, i, j: j <= i - 3),
    "beyond the last key": ({"pattern": "causal", "q_start": 9}, lambda b, i, j: j <= i + 9),
    "each row its start": (
        {"pattern": "causal & key_span(1, 10)", "q_start": STARTS},
        lambda b, i, j: (j <= i + STARTS.numpy()[b]) & (j >= 1) & (j < 10),
    ),
    "each row its padding": (
        {"pattern": p.KeySpan(torch.tensor([2, 5]), torch.tensor([9, 5]))},
        lambda b, i, j: (j >= np.array([2, 5])[b]) & (j < np.array([9, 5])[b]),
    ),
    "documents by row": (
        {"pattern": p.SameDocument(torch.tensor([[0] * 5 + [1] * 6, [0, 1] * 5 + [0]]))},
        lambda b, i, j: np.where(b == 0, (i + 4 < 5) == (j < 5), (i + 4) % 2 == j % 2),
    ),
}


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_formula_holds_for_every_pattern_and_position(case, lowered):
    options, rule = CASES[case]
    q, k, v = tensors()
    found = rg.attention_detail(
        q, k, v, mechanism=Squared(lowered), want=["log_sum_exp", "weights", "received"], backend="reference", **options
    )
    b, i, j = np.arange(2)[:, None, None, None], np.arange(7)[:, None], np.arange(11)
    allowed = np.broadcast_to(rule(b, i, j), (2, 1, 7, 11))
    alike = allowed * (squared(q) @ squared(k).repeat(3, 1).swapaxes(-1, -2))
    sums = alike.sum(-1)
    weights = alike / np.where(sums > 0, sums, 1)[..., None]
    output = weights @ v.numpy().repeat(3, 1)
    np.testing.assert_allclose(found.output.numpy(), output, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.received.numpy(), weights.sum(2), rtol=1e-10, atol=1e-13)
    shift = 1400 if lowered else 0
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found.log_sum_exp.numpy(), np.log(sums) - shift, rtol=1e-10, atol=1e-10)


class Cut(Kernelised):
    """φ(x) = max(x, 0), which may be 0 altogether."""

    statistics = frozenset(STATISTICS)

    def lift(self, q, k, scale, parameters):
        return Features(q.relu(), k.relu())


def test_a_query_whose_features_are_all_0_sees_nobody():
    q, k, v = (x.requires_grad_() for x in tensors())
    cut = torch.where(torch.arange(7)[:, None] == 3, -q.abs(), q.abs()).detach().requires_grad_()
    found = rg.attention_detail(cut, k, v, mechanism=Cut(), want="log_sum_exp", backend="reference")
    assert (found.output[:, :, 3] == 0).all()
    assert (found.log_sum_exp[:, :, 3] == -math.inf).all()
    assert (found.output[:, :, 4:] != 0).all()
    (found.output.sum() + found.log_sum_exp[:, :, 4:].sum()).backward()
    assert all(x.grad.isfinite().all() for x in (cut, k, v))


def test_top_keys_of_weights_below_zero_are_still_ranked():
    q, k, v = tensors(k_len=3)
    options = {"mechanism": RandomFeature(1, sigma=0.3), "want": ["weights", rg.top_keys(5)], "backend": "reference"}
    found = rg.attention_detail(q, k, v, **options)
    assert (found.weights < 0).any()
    assert (found.weights < -1).any()
    ranked, order = found.weights.sort(-1, descending=True)
    assert torch.equal(found.top_keys.indices[..., :3], order)
    assert torch.equal(found.top_keys.weights[..., :3], ranked)
    assert (found.top_keys.indices[..., 3:] == -1).all()
