"""Compares every candidate with exact attention of the same call: errors, memory, and times taken in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from regard.errors import ArgumentError
from regard.patterns import Pattern, as_pattern
from regard.patterns.arguments import whole
from regard.timing import median_seconds
from regard_lab.seeing.quality.call import THIS_CALL, Call, Exact, exact_answers, exact_of
from regard_lab.seeing.quality.candidates import Candidate, Given, as_candidate, sweep
from regard_lab.seeing.quality.report import Approximation, LeftOut, Row


@torch.no_grad()
def approximation(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mechanisms: Iterable[Given | Candidate] | None = None,
    pattern: Pattern | str | None = None,
    scale: float | None = None,
    q_start: int | torch.Tensor | None = None,
    seeds: Sequence[int] = range(5),
    tolerance: float = 0.1,
    rounds: int = 5,
) -> Approximation:
    """Compare approximations with exact attention on your own tensors: error, time and memory.

        error = |estimate - exact| / |exact|,   mass = Σ of the exact weights on the kept pairs

    Every candidate is compared with exact softmax attention of the same call, which is streamed in memory linear in
    the length. Random candidates are computed with every seed; the report contains the mean and the standard deviation
    of the error. Times are CPU times on one thread, measured in turns; memory is the peak according to the plan.

    A mechanism that by design computes something else is compared with the exact form of its own definition, named in
    the column "against": RandomFeature with the call and with the softmax of unit-norm q and k; LSH with attention
    whose keys are the queries and in which a query looks at its own position only if it may look at no other.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        mechanisms: the candidates: patterns, texts of patterns, mechanisms, or (mechanism, parameters) for a mechanism
            with learned parameters; several of every family by default. Parameters that are missing are drawn with the
            first seed, and say nothing about quality: the row is marked "untrained".
        pattern: of the call; combined with a candidate's own pattern by &.
        scale: of the call; ignored for mechanisms without a scale.
        q_start: as for `attention`.
        seeds: for random candidates.
        tolerance: the largest error of a suggested candidate.
        rounds: how often each candidate is timed, after a warm-up call.

    Returns:
        A report to print; its details are in `rows`, `suggestions`, `to_json()` and `plot(path)`.

    Raises:
        ShapeError: tensors whose shapes do not fit each other.
        ArgumentError: no candidate that was given applies; no seed; a tolerance or number of rounds that is not above
            0; or tensors whose exact attention is empty, zero or not finite.

    >>> q, k, v = torch.randn(3, 1, 2, 256, 16)
    >>> report = approximation(q, k, v, mechanisms=["sliding_window(32)", "sliding_window(128)"], rounds=1)
    >>> [row.name for row in report.rows]
    ['sliding_window(32)', 'sliding_window(128)']
    >>> report.rows[0].error > report.rows[1].error > 0
    True
    """
    _check(seeds, tolerance, rounds)
    call = Call(q, k, v, as_pattern(pattern), {"scale": scale, "q_start": q_start})
    plan, exact = call.plan(), exact_of(call)
    _check_exact(exact)
    comparisons, left_out = [], []
    for candidate in sweep(call) if mechanisms is None else [as_candidate(one) for one in mechanisms]:
        candidate = candidate.prepared(call, seeds[0])
        reason = candidate.reason_against(call)
        if reason is None:
            comparisons.append(Comparison(candidate, call, tuple(seeds) if candidate.random else (None,)))
        else:
            left_out.append(LeftOut(candidate.name, candidate.family, reason))
    if mechanisms is not None and left_out and not comparisons:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise ArgumentError(f"no candidate applies to this call: {reasons}")
    own, *seconds = median_seconds([call.output, *(one.timed.output for one in comparisons)], rounds, q.device)
    known, rows = {THIS_CALL: exact}, []
    for one, took in zip(comparisons, seconds, strict=True):
        rows += one.rows(known, took, own, _held(call))
    return Approximation(
        str(plan.problem), plan.backend, own, _held(call), float(tolerance), len(seeds), tuple(rows), tuple(left_out)
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """A candidate, the exact call, and the seeds to compute it with."""

    candidate: Candidate
    exact: Call
    seeds: tuple[int | None, ...]

    @property
    def timed(self) -> Call:
        """The call that is timed, with the first seed."""
        return self.candidate.call(self.exact, self.seeds[0])

    def rows(self, known: dict[str, Exact], seconds: float, exact_seconds: float, exact_bytes: float) -> list[Row]:
        """A row for each exact result that the candidate is compared with; `known` caches exact results."""
        plan, held = self.timed.plan(), _held(self.timed)
        answers = [self._answer(seed) for seed in self.seeds]
        rows = []
        for against, exact in exact_answers(self.exact, self.candidate.what, known).items():
            errors, worst = zip(*(exact.errors(output) for output, _ in answers), strict=True)
            kept = [exact.mass(log_sum_exp) for _, log_sum_exp in answers if log_sum_exp is not None]
            rows.append(
                Row(
                    name=self.candidate.name,
                    family=self.candidate.family,
                    knob=self.candidate.knob,
                    against=against,
                    backend=plan.backend,
                    error=statistics.fmean(errors),
                    spread=statistics.stdev(errors) if len(errors) > 1 else None,
                    worst_row=max(worst),
                    mass=statistics.fmean(kept) if kept else None,
                    seconds=seconds,
                    time_ratio=seconds / exact_seconds if exact_seconds else math.inf,
                    bytes=held,
                    memory_ratio=held / exact_bytes,
                    text=str(self.candidate.what),
                )
            )
        return rows

    def _answer(self, seed: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output of the candidate, and the log-sum-exp of its kept pairs if it masks pairs, else None."""
        call, what = self.candidate.call(self.exact, seed), self.candidate.what
        keeps = isinstance(what, Pattern) or what.shares_keys
        return call.with_log_sum_exp() if keeps else (call.output(), None)


def _held(call: Call) -> float:
    """Peak memory in bytes: the tensors and what the plan needs beside them."""
    plan = call.plan()
    return plan.problem.nbytes + plan.cost.peak_bytes


def _check(seeds: Sequence[int], tolerance: float, rounds: int) -> None:
    whole("rounds", rounds, 1)
    for seed in seeds:
        whole("a seed", seed)
    if not len(seeds):
        raise ArgumentError("seeds is empty; random candidates need at least one, such as range(5)")
    if not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
        raise ArgumentError(f"tolerance is {tolerance!r}; it needs to be a number above 0, such as 0.1")


def _check_exact(exact: Exact) -> None:
    size = float(exact.output.float().norm())
    if not 0 < size < math.inf:
        words = "zero everywhere" if size == 0 else "not finite"
        raise ArgumentError(
            f"exact attention of these tensors is {words} (shape {tuple(exact.output.shape)}), so a relative error "
            f"cannot be computed; give queries, keys and values of a real call"
        )
