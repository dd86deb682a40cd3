"""Checks the results of a contender: some rows of the output, and gradients, against the float64 oracle.

Rows of attention are independent. If the gradient of the output is zero outside of some rows, dk and dv are sums over
those rows only. A few rows therefore check a call of any length exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from regard.testing import Answer, Budget, answer, kept_weights
from regard_lab.bench.case import Contender, Contest
from regard_lab.bench.formulas import Bound, expected_of, hashed_pairs
from regard_lab.bench.ours import DROPOUT_SEED, WHOLE
from regard_lab.bench.work import Tensors, Work, allowed_pairs, make_tensors

ROWS = 24
SUMS = ("received",)  # statistics over all rows


@dataclass(frozen=True)
class Verdict:
    """The largest error relative to the rounding bound, by the name of the compared tensor."""

    errors: dict[str, float]

    @property
    def right(self) -> bool:
        """Whether every error is within its bound."""
        return all(share <= 1 for share in self.errors.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.3g}" for name, share in self.errors.items())


def judge(contest: Contest, contender: Contender) -> Verdict:
    """Compare the results of a contender with the oracle."""
    work = contender.works_on(contest.work)
    if contender.judged_at is not None:
        work = work.as_long_as(min(contender.judged_at, work.q_len))
    if contender.own_dropout:
        work = replace(work, dropout=0.0)
    rows = chosen_rows(work.q_len)
    tensors = _only_rows(make_tensors(work), rows)
    results = answered(work, contender.prepare(work, tensors), tensors)
    if contender.own_pattern is not None:
        allowed = contender.own_pattern(work, rows).numpy()
    elif work.shares_keys:
        allowed = hashed_pairs(work, tensors, rows).numpy()
    else:
        allowed = allowed_pairs(work.pattern, rows, work.q_len, work.k_len)
    if work.mechanism is not None:
        return _by_formula(work, tensors, rows, allowed, results)
    expected = _oracle(work, tensors, rows, allowed)
    budget = _budget(work, tensors, expected, rows)
    return Verdict({name: _error(budget, name, x, expected, rows) for name, x in results.items()})


def _by_formula(
    work: Work, tensors: Tensors, rows: list[int], allowed: Any, results: dict[str, torch.Tensor]
) -> Verdict:
    """The verdict for a mechanism other than softmax, by its own formula and the error of this formula in float32."""
    pairs = torch.as_tensor(allowed)
    expected, single = (expected_of(work, tensors, rows, pairs, dtype) for dtype in (torch.float64, torch.float32))
    whole = {"dk", "dv"} | {f"d{name}" for name in tensors.parameters} | ({"dq"} if work.shares_keys else set())
    return Verdict(
        {
            name: Bound.of(expected[name], single[name]).share(x if name in whole else x[:, :, rows])
            for name, x in results.items()
        }
    )


def answered(work: Work, attend: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Run a prepared call: output, statistics, and gradients if the work has them, by name."""
    result = attend()
    named = result if isinstance(result, dict) else {"output": result}
    if not work.backward:
        return named
    gradients = torch.autograd.grad(named["output"], list(tensors.leaves.values()), tensors.grad)
    return named | dict(zip(tensors.leaves, gradients, strict=True))


def chosen_rows(q_len: int) -> list[int]:
    """All rows of a short call; of a long one the first and last, some at the edges of blocks, and some at random."""
    if q_len <= WHOLE:
        return list(range(q_len))
    edges = {0, 1, q_len // 2 - 1, q_len // 2, q_len - 2, q_len - 1, 63, 64, 255, 256}
    drawn = torch.randperm(q_len, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(edges | set(drawn[: ROWS - len(edges)]))


def _only_rows(tensors: Tensors, rows: list[int]) -> Tensors:
    grad = torch.zeros_like(tensors.grad)
    grad[:, :, rows] = tensors.grad[:, :, rows]
    return replace(tensors, grad=grad)


def _oracle(work: Work, tensors: Tensors, rows: list[int], allowed: Any) -> Answer:
    q, k, v, grad = (_array(x) for x in (tensors.q[:, :, rows], tensors.k, tensors.v, tensors.grad[:, :, rows]))
    bias = None if tensors.bias is None else _array(tensors.bias[:, :, rows])
    factors = None
    if work.dropout:
        places = np.asarray(rows) + (work.k_len - work.q_len)
        kept = kept_weights(work.dropout, DROPOUT_SEED, work.batch, work.heads, places, np.arange(work.k_len))
        factors = kept / (1 - work.dropout)
    backward: dict[str, Any] = {"grad_output": grad} if work.backward else {}
    return answer(q, k, v, allowed, scale=work.scale, bias=bias, factors=factors, **backward)


def _budget(work: Work, tensors: Tensors, expected: Answer, rows: list[int]) -> Budget:
    """The rounding budget, with the cache's dtype for the output, since some contenders compute in that dtype."""
    dtype = getattr(torch, work.cache_dtype or work.dtype)
    bias = None if tensors.bias is None else tensors.bias.detach()[:, :, rows]
    backward: dict[str, Any] = (
        {"grad_output": tensors.grad[:, :, rows].cpu(), "answer": expected} if work.backward else {}
    )
    q, k, v = (x.detach().cpu() for x in (tensors.q, tensors.k, tensors.v))
    budget = Budget.of(
        q, k, v, dtype, scale=work.scale, bias=None if bias is None else bias.cpu(), dropout=work.dropout, **backward
    )
    score = budget.units["log_sum_exp"]
    largest = float(np.abs(np.log(np.maximum(expected.weights, np.finfo(np.float64).tiny))).max())
    statistics = {"received": score * expected.weights.sum(2).max(), "top_weights": score, "entropy": score * largest}
    return replace(budget, units=budget.units | statistics)


def _error(budget: Budget, name: str, value: torch.Tensor, expected: Answer, rows: list[int]) -> float:
    wanted = _expected(name, value, expected)
    value = value.detach().cpu()
    if name in ("dk", "dv") or name in SUMS:
        return budget.share(name, value, wanted)
    return budget.share(name, value[:, :, rows], wanted)


def _expected(name: str, value: torch.Tensor, expected: Answer) -> np.ndarray:
    weights = expected.weights
    if name == "entropy":
        return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    if name == "received":
        return weights.sum(2)
    if name == "top_weights":
        return -np.sort(-weights, axis=-1)[..., : value.shape[-1]]
    return getattr(expected, name)


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()
