"""Checks a contender's results in float64: softmax against the oracle, other mechanisms against the reference backend.

The oracle shares no code with the library. Gradients of mechanisms are those of automatic differentiation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from regard.functional import attention
from regard.patterns import Causal
from regard.testing import Answer, Budget, answer
from regard.testing.oracle import kept_weights
from regard_lab.bench.work import (
    DROPOUT_SEED,
    WHOLE,
    Contender,
    Contest,
    Tensors,
    Work,
    allowed_pairs,
    make_tensors,
)

# Other libraries add 1e-6 to denominators: errors up to ten times that, relative to the largest number, are accepted.
ADDED = 1e-5
ROUNDINGS = 8  # errors of the reference in float32 that are accepted
ROUNDINGS_OF_HALF = 2  # units of a narrower dtype that are accepted besides
ROWS = 24  # of a long call that are checked
OVER_ALL_ROWS = ("dk", "dv", "received")  # results that are no rows of queries


@dataclass(frozen=True)
class Bound:
    """The largest accepted error of a result: `ROUNDINGS` times the error of the reference in float32, and what `ADDED`
    and a narrower dtype of the tensors allow.
    """

    expected: torch.Tensor
    largest_error: float

    @classmethod
    def of(
        cls, expected: torch.Tensor, single: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> Bound:
        """The bound from the results of the reference in float64 and float32."""
        rounding = 0.0
        largest = 0.0
        if expected.numel():
            rounding = float((single.double() - expected).abs().max())
            largest = float(expected.abs().max())
        relative = ADDED
        if dtype != torch.float32:
            relative = ROUNDINGS_OF_HALF * torch.finfo(dtype).eps
        tiny = torch.finfo(torch.float32).tiny
        return cls(expected, ROUNDINGS * rounding + relative * largest + tiny)

    def share(self, result: torch.Tensor) -> float:
        """The error relative to the bound; inf for a non-finite result."""
        error = float((result.detach().cpu().double() - self.expected).abs().max())
        return error / self.largest_error if math.isfinite(error) else math.inf


def expected_of(
    work: Work, tensors: Tensors, rows: list[int], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Compute output and gradients for some rows by the reference backend, by name as in `results_of`.

    Args:
        work: a work with a mechanism.
        tensors: its tensors; only these rows of the gradient of the output are used.
        rows: indices of queries.
        dtype: the dtype of the computation.
    """
    q, k, v = (_leaf(x, dtype) for x in (tensors.q, tensors.k, tensors.v))
    parameters = {name: _leaf(x, dtype) for name, x in tensors.parameters.items()}
    attend = partial(
        attention,
        pattern=work.pattern,
        mechanism=work.mechanism,
        backend="reference",
        parameters=parameters or None,
    )
    if work.shares_keys:
        output = attend(q, q, v)[:, :, rows]
    elif work.gated:  # a gate for each key, and each key after all before it
        output = attend(q, k, v)[:, :, rows]
    elif work.pattern == Causal():
        # One query at a time, whose keys end with its own, so that no matrix is in memory.
        outputs = []
        for row in rows:
            end = row + 1 + work.k_len - work.q_len
            outputs.append(attend(q[:, :, row : row + 1], k[:, :, :end], v[:, :, :end]))
        output = torch.cat(outputs, 2)
    else:
        output = attend(q[:, :, rows], k, v)
    if not work.backward:
        return {"output": output.detach()}

    leaves = {"dq": q}
    if not work.shares_keys:
        leaves["dk"] = k
    leaves["dv"] = v
    for name, parameter in parameters.items():
        leaves[f"d{name}"] = parameter
    grad_output = tensors.grad[:, :, rows].cpu().to(dtype)
    grads = torch.autograd.grad(output, list(leaves.values()), grad_output)
    gradients = dict(zip(leaves, grads, strict=True))
    if not work.shares_keys:
        gradients["dq"] = gradients["dq"][:, :, rows]
    return {"output": output.detach()} | gradients


def _leaf(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.detach().cpu().to(dtype).requires_grad_()


@dataclass(frozen=True)
class Correctness:
    """The largest error relative to the rounding bound, by the name of the compared tensor."""

    errors: dict[str, float]

    @property
    def right(self) -> bool:
        """Whether every error is within its bound."""
        return all(share <= 1 for share in self.errors.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.3g}" for name, share in self.errors.items())


def judge(contest: Contest, contender: Contender) -> Correctness:
    """Compare the results of a contender with the oracle."""
    work = contender.works_on(contest.work)
    if contender.judged_at is not None:
        work = work.as_long_as(min(contender.judged_at, work.q_len))
    if contender.own_dropout:
        work = replace(work, dropout=0.0)
    rows = chosen_rows(work.q_len)
    tensors = _only_rows(make_tensors(work), rows)
    results = results_of(work, contender.prepare(work, tensors), tensors)
    if work.mechanism is not None:
        return _by_reference(work, tensors, rows, results)
    allowed = allowed_pairs(work.pattern, rows, work.q_len, work.k_len)
    expected = _oracle(work, tensors, rows, allowed)
    budget = _budget(work, tensors, expected, rows)
    return Correctness(
        {name: _error(budget, name, x, expected, rows) for name, x in results.items()}
    )


def _by_reference(
    work: Work, tensors: Tensors, rows: list[int], results: dict[str, torch.Tensor]
) -> Correctness:
    """The verdict for a mechanism other than softmax, by the reference backend and its error in float32."""
    expected = expected_of(work, tensors, rows, torch.float64)
    single = expected_of(work, tensors, rows, torch.float32)
    whole = {"dk", "dv"} | {f"d{name}" for name in tensors.parameters}
    if work.shares_keys:
        whole.add("dq")

    shares = {}
    for name, result in results.items():
        compared = result if name in whole else result[:, :, rows]
        bound = Bound.of(expected[name], single[name], getattr(torch, work.dtype))
        shares[name] = bound.share(compared)
    return Correctness(shares)


def results_of(work: Work, attend: Any, tensors: Tensors) -> dict[str, torch.Tensor]:
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
    options: dict[str, Any] = {"scale": work.scale}
    if tensors.bias is not None:
        options["bias"] = _array(tensors.bias[:, :, rows])
    if work.dropout:
        q_pos = np.asarray(rows) + (work.k_len - work.q_len)
        k_pos = np.arange(work.k_len)
        kept = kept_weights(work.dropout, DROPOUT_SEED, work.batch, work.heads, q_pos, k_pos)
        options["factors"] = kept / (1 - work.dropout)
    if work.backward:
        options["grad_output"] = _array(tensors.grad[:, :, rows])
    q = _array(tensors.q[:, :, rows])
    return answer(q, _array(tensors.k), _array(tensors.v), allowed, **options)


def _budget(work: Work, tensors: Tensors, expected: Answer, rows: list[int]) -> Budget:
    """The rounding budget, with the cache's dtype for the output, since some contenders compute in that dtype."""
    dtype = getattr(torch, work.cache_dtype or work.dtype)
    options: dict[str, Any] = {"scale": work.scale, "dropout": work.dropout}
    if tensors.bias is not None:
        options["bias"] = tensors.bias.detach()[:, :, rows].cpu()
    if work.backward:
        options["grad_output"] = tensors.grad[:, :, rows].cpu()
        options["answer"] = expected
    q, k, v = (x.detach().cpu() for x in (tensors.q, tensors.k, tensors.v))
    budget = Budget.of(q, k, v, dtype, **options)

    score = budget.units["log_sum_exp"]
    weights = np.maximum(expected.weights, np.finfo(np.float64).tiny)
    largest_log = float(np.abs(np.log(weights)).max())
    statistics = {
        "received": score * expected.weights.sum(2).max(),
        "top_weights": score,
        "entropy": score * largest_log,
    }
    return replace(budget, units=budget.units | statistics)


def _error(
    budget: Budget, name: str, value: torch.Tensor, expected: Answer, rows: list[int]
) -> float:
    expected_value = _expected(name, value, expected)
    value = value.detach().cpu()
    if name not in OVER_ALL_ROWS:
        value = value[:, :, rows]
    return budget.share(name, value, expected_value)


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
    return x.detach().cpu().double().numpy()
