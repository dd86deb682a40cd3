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
        of_q = q.square() + 0.1
        of_k = k.square() + 0.1
        if not self.lowered:
            return Features(of_q, of_k)
        q_log, k_log = (x.square().sum(-1) - 700 for x in (q, k))
        return Features(
            of_q * (-q_log - 700).exp()[..., None],
            of_k * (-k_log - 700).exp()[..., None],
            k_log,
            q_log=q_log,
        )


def tensors(k_len: int = 11) -> list[torch.Tensor]:
    shapes = (2, 6, 7, 5), (2, 2, k_len, 5), (2, 2, k_len, 3)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


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
    found = rg.attention_detail(
        q, k, v, mechanism=Squared(lowered), pattern=pattern, q_start=q_start, **options
    )
    alike = pattern.dense(7, 11, q_start=q_start).numpy() * (
        squared(q) @ squared(k).repeat(3, 1).swapaxes(-1, -2)
    )
    sums = alike.sum(-1)
    weights = alike / np.where(sums > 0, sums, 1)[..., None]
    with np.errstate(divide="ignore"):
        log_sum_exp = np.log(sums) - (1400 if lowered else 0)
    expected = {
        "output": weights @ v.numpy().repeat(3, 1),
        "weights": weights,
        "received": weights.sum(2),
    }
    for name, one in {**expected, "log_sum_exp": log_sum_exp}.items():
        np.testing.assert_allclose(
            getattr(found, name), one, rtol=1e-10, atol=1e-10 if "sum" in name else 1e-13
        )


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
    options = {
        "mechanism": RandomFeature(1, sigma=0.3),
        "want": ["weights", rg.top_keys(5)],
        "backend": "reference",
    }
    found = rg.attention_detail(q, k, v, **options)
    assert (found.weights < 0).any()
    assert (found.weights < -1).any()
    ranked, order = found.weights.sort(-1, descending=True)
    assert torch.equal(found.top_keys.indices[..., :3], order)
    assert torch.equal(found.top_keys.weights[..., :3], ranked)
    assert (found.top_keys.indices[..., 3:] == -1).all()
