"""Checks a contender's results against formulas in float64 that share no code with the library.

Values that a mechanism draws at random are read from it. Gradients are those of automatic differentiation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import ArgumentError
from regard.mechanisms import LSH, Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard.mechanisms.draws import directions
from regard.patterns import Causal
from regard.testing import Answer, Budget, answer, kept_weights
from regard_lab.bench.work import DROPOUT_SEED, WHOLE, Contender, Contest, Tensors, Work, allowed_pairs, make_tensors

Numbers = NDArray[np.int64]


def hashed_pairs(work: Work, tensors: Tensors, rows: list[int]) -> torch.Tensor:
    """The pairs that regard's LSH keeps, boolean (batch, heads, rows, k_len); rotations are read from the mechanism.

    Source: Reformer, Kitaev et al. 2020, section 2; causal chunks are counted inside each bucket.
    """
    mechanism = work.mechanism
    assert isinstance(mechanism, LSH)
    buckets = mechanism.bucket(tensors.k).cpu().numpy()  # (batch, heads, rounds, k_len)
    causal = work.pattern == Causal()
    kept = [
        [_kept(head, rows, mechanism.chunk, causal) for head in text]
        for text in buckets
    ]  # fmt: skip
    return torch.from_numpy(np.array(kept))


def _kept(buckets: Numbers, rows: list[int], chunk: int, causal: bool) -> NDArray[np.bool_]:
    """(rows, k_len) for one head, whose buckets are (rounds, k_len)."""
    length = buckets.shape[1]
    i, j = np.asarray(rows)[:, None], np.arange(length)
    seen = np.zeros((len(rows), length), dtype=bool)
    for bucket in buckets:
        place = places(bucket)
        if causal:  # counted from the first key of each bucket
            first = np.array([place[bucket == one].min() for one in range(bucket.max() + 1) if (bucket == one).any()])
            place = place - first[np.unique(bucket, return_inverse=True)[1]]
        back = place[i] // chunk - place // chunk
        seen |= (bucket[i] == bucket) & ((back == 0) | (back == 1))
    if length <= chunk:
        seen[:] = True
    if causal:
        seen = (seen | (i < chunk)) & (j <= i)
    return own_last(seen, rows)


def places(bucket: Numbers) -> Numbers:
    """The rank of each position in the order by bucket, then by position.

    >>> places(np.array([1, 0, 1, 0])).tolist()
    [2, 0, 3, 1]
    """
    place = np.empty(len(bucket), dtype=np.int64)
    place[np.lexsort((np.arange(len(bucket)), bucket))] = np.arange(len(bucket))
    return place


def own_last(seen: NDArray, rows: list[int]) -> NDArray:
    """Mask a query's own key unless it is the query's only key; counts stay counts.

    >>> own_last(np.array([[1, 0], [2, 1]]), [0, 1]).tolist()
    [[1, 0], [2, 0]]
    """
    at = np.arange(len(rows)), np.asarray(rows)
    others = seen.copy()
    others[at] = 0
    others[at] = ~others.any(-1)
    return others


# Other libraries add 1e-6 to denominators: errors up to ten times that, relative to the largest number, are accepted.
ADDED = 1e-5
ROUNDINGS = 8

Parameters = Mapping[str, torch.Tensor]
Formula = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Bound:
    """The largest accepted error of a result: `ROUNDINGS` times the error of the formula itself in float32."""

    expected: torch.Tensor
    largest_error: float

    @classmethod
    def of(cls, expected: torch.Tensor, single: torch.Tensor) -> Bound:
        """The bound from the results of the formula in float64 and float32."""
        rounding = float((single.double() - expected).abs().max()) if expected.numel() else 0.0
        size = float(expected.abs().max()) if expected.numel() else 0.0
        return cls(expected, ROUNDINGS * rounding + ADDED * size + torch.finfo(torch.float32).tiny)

    def share(self, result: torch.Tensor) -> float:
        """The error relative to the bound; inf for a non-finite result."""
        error = (result.detach().cpu().double() - self.expected).abs().max()
        return float(error) / self.largest_error if bool(error.isfinite()) else math.inf


def expected_of(
    work: Work, tensors: Tensors, rows: list[int], pairs: torch.Tensor, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Compute output and gradients for some rows by the formula of the mechanism, by name as in `results_of`.

    Args:
        work: a work with a mechanism.
        tensors: its tensors; only these rows of the gradient of the output are used.
        rows: indices of queries.
        pairs: the keys that each may look at, or how often, (rows, k_len) or (batch, heads, rows, k_len).
        dtype: the dtype of the computation.

    Raises:
        ArgumentError: no formula for this mechanism.
    """
    formula = FORMULAS.get(type(work.mechanism)) if work.mechanism is not None else None
    if formula is None:
        raise ArgumentError(f"no formula is known for {work.mechanism}; add it to regard_lab.bench.judging")
    q, k, v = (_leaf(x, dtype) for x in (tensors.q, tensors.k, tensors.v))
    k = q if work.shares_keys else k
    parameters = {name: _leaf(x, dtype) for name, x in tensors.parameters.items()}
    keys, values = (x.repeat_interleave(work.group, dim=1) for x in (k, v))
    pairs = pairs.to(dtype).expand(*q.shape[:2], len(rows), work.k_len)
    output = formula(work.mechanism, q[:, :, rows], keys, values, pairs, work.scale, parameters)
    if not work.backward:
        return {"output": output.detach()}
    leaves = {"dq": q, "dk": k, "dv": v} | {f"d{name}": x for name, x in parameters.items()}
    sent = torch.autograd.grad(output, list(leaves.values()), tensors.grad[:, :, rows].cpu().to(dtype))
    gradients = dict(zip(leaves, sent, strict=True))
    if not work.shares_keys:
        gradients["dq"] = gradients["dq"][:, :, rows]
    return {"output": output.detach()} | gradients


def _leaf(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.detach().cpu().to(dtype).requires_grad_()


def _mean(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (weights @ values) / weights.sum(-1, keepdim=True)


def _linear(
    mechanism: LinearTransformer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Katharopoulos et al. 2020, equations 7 and 9, with φ(x) = elu(x) + 1."""
    of_q, of_k = (torch.where(x > 0, x + 1, x.masked_fill(x > 0, 0).exp()) for x in (q, k))
    return _mean(pairs * (of_q @ of_k.mT), v)


def _performer(
    mechanism: Performer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Choromanski et al. 2021, lemma 1: exp(ωx - |x|²/2) of both sides, each scaled by half of the scale."""
    omega = directions(mechanism.seed, mechanism.features, q.shape[-1], mechanism.orthogonal, like=q)
    of_q, of_k = ((x @ omega.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q * scale**0.5, k * scale**0.5))
    return _mean(pairs * (of_q @ of_k.mT), v)


def _random_feature(
    mechanism: RandomFeature, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Peng et al. 2021, equation 5, without gates: mean of cos(w·(q - k)); the sum is at least exp(-2/σ²) per key."""
    w = directions(mechanism.seed, mechanism.features, q.shape[-1], False, like=q) / mechanism.sigma
    angle_q, angle_k = (x / x.norm(dim=-1, keepdim=True) @ w.mT for x in (q, k))
    alike = (angle_q.cos() @ angle_k.cos().mT + angle_q.sin() @ angle_k.sin().mT) / len(w)
    weights = pairs * alike
    least = math.exp(-2 / mechanism.sigma**2) * pairs.sum(-1, keepdim=True)
    return (weights @ v) / weights.sum(-1, keepdim=True).maximum(least)


def _linformer(
    mechanism: Linformer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Wang et al. 2020, equation 7: softmax(q (E k)ᵀ scale) (F v)."""
    key_projection, value_projection = (
        parameters[name][:, :, : k.shape[2]].repeat_interleave(k.shape[1] // len(parameters[name]), dim=0)
        for name in ("key_projection", "value_projection")
    )  # a matrix for each query head
    mixed_k, mixed_v = key_projection @ k, value_projection @ v
    return (q @ mixed_k.mT * scale).softmax(-1) @ mixed_v


def _lsh(
    mechanism: LSH, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Kitaev et al. 2020, equations 2 to 4: softmax over the kept pairs, with keys of unit length."""
    return _mean(pairs * (q @ (k / k.norm(dim=-1, keepdim=True)).mT * scale).exp(), v)


def _additive(
    mechanism: Softmax, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pairs: torch.Tensor, scale: float,
    parameters: Parameters,
) -> torch.Tensor:  # fmt: skip
    """Bahdanau et al. 2015, appendix A.1.2: energy · tanh(W q + U k)."""
    if not isinstance(mechanism.score, Additive):
        raise ArgumentError(f"no formula is known for {mechanism}; add it to regard_lab.bench.judging")
    key_weight = parameters["key_weight"].repeat_interleave(k.shape[1] // len(parameters["key_weight"]), dim=0)
    of_q, of_k = q @ parameters["query_weight"].mT, k @ key_weight.mT  # a matrix for each query head
    scores = torch.tanh(of_q[:, :, :, None] + of_k[:, :, None]) @ parameters["energy"][:, None, :, None]
    return _mean(pairs * scores[..., 0].exp(), v)


FORMULAS: dict[type[Mechanism], Formula] = {
    LinearTransformer: _linear,
    Softmax: _additive,
    Performer: _performer,
    RandomFeature: _random_feature,
    Linformer: _linformer,
    LSH: _lsh,
}


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
    results = results_of(work, contender.prepare(work, tensors), tensors)
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
