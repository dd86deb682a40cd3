"""Compares every candidate with exact attention of the same call: errors, memory, and times taken in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from regard.errors import ArgumentError
from regard.inspection.quality.call import THIS_CALL, Call, Exact, exact_answers, exact_of
from regard.inspection.quality.candidates import Candidate, Given, as_candidate, sweep
from regard.inspection.quality.report import Approximation, LeftOut, Row
from regard.patterns import Pattern, as_pattern
from regard.patterns.arguments import whole

SHORTEST = 0.002  # seconds; a call that is shorter is repeated within its turn


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    """The median time of each call over so many rounds, in each of which every call has its turn.

    On the CPU it is the time that the processor worked, over all its threads; on other devices the time that passed.
    """
    repeats = [max(1, round(SHORTEST / max(_seconds(call, 1, device), 1e-7))) for call in calls]  # and they are warm
    samples: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for turn in range(len(calls)):
            at = (number + turn) % len(calls)
            samples[at].append(_seconds(calls[at], repeats[at], device))
    return [statistics.median(found) for found in samples]


def _seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _finish(device)
    began = clock()
    for _ in range(repeats):
        call()
    _finish(device)
    return (clock() - began) / repeats


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    """What cheaper attention would lose on one's own tensors, and what it would save.

        error = |estimate - exact| / |exact|,   mass = Σ of the exact weights on the pairs that are kept

    Every candidate is compared with exact softmax attention of the same call (the cheapest backend, which streams),
    in memory that grows with the length. What draws at random is asked with every seed: the report tells the mean and
    the standard deviation of its error. Times are CPU time taken in turns, memory is what the plan holds at once.

    A mechanism that computes something else by design is compared with the exact form of that, which the column
    "against" names: RandomFeature with both the call and the softmax of q and k of length 1; LSH with attention whose
    keys are the queries and where nobody sees its own position unless it sees no other.

    Args:
        q: queries (batch, heads, q_len, head_dim).
        k: keys (batch, kv_heads, k_len, head_dim).
        v: values (batch, kv_heads, k_len, v_dim).
        mechanisms: patterns, texts of patterns, mechanisms, or (mechanism, parameters) where it learned something; a
            sweep over every family by default.
        pattern: of the call; a candidate's own pattern is joined to it by &.
        scale: of the call; a mechanism that has no scale computes without.
        q_start: as for `attention`.
        seeds: what random candidates are drawn with.
        tolerance: the error that a suggested candidate may have.
        rounds: how often each is timed, after one call that is not.

    Returns:
        A report: `print` shows it; `rows`, `suggestions`, `to_json()` and `plot(path)` tell more.

    Raises:
        ShapeError: tensors that do not fit together.
        ArgumentError: no seed, a tolerance or number of rounds that is not above 0, or tensors whose exact attention
            is empty, zero or not finite.

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
        reason = candidate.reason_against(call)
        if reason is None:
            comparisons.append(Comparison(candidate, call, tuple(seeds) if candidate.random else (None,)))
        else:
            left_out.append(LeftOut(candidate.name, candidate.family, reason))
    own, *seconds = median_seconds([call.output, *(one.timed.output for one in comparisons)], rounds, q.device)
    known, rows = {THIS_CALL: exact}, []
    for one, took in zip(comparisons, seconds, strict=True):
        rows += one.rows(known, took, own, _held(call))
    return Approximation(
        str(plan.problem), plan.backend, own, _held(call), float(tolerance), len(seeds), tuple(rows), tuple(left_out)
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """A candidate, the exact call, and the seeds to ask it with."""

    candidate: Candidate
    exact: Call
    seeds: tuple[int | None, ...]

    @property
    def timed(self) -> Call:
        """The call that is timed: that with the first seed."""
        return self.candidate.call(self.exact, self.seeds[0])

    def rows(self, known: dict[str, Exact], seconds: float, exact_seconds: float, exact_bytes: float) -> list[Row]:
        """A row for each exact answer that the candidate is compared with; `known` holds those already computed."""
        plan, held = self.timed.plan(), _held(self.timed)
        answers = [self._answer(seed) for seed in self.seeds]
        found = []
        for against, exact in exact_answers(self.exact, self.candidate.what, known).items():
            errors, worst = zip(*(exact.errors(output) for output, _ in answers), strict=True)
            kept = [exact.mass(log_sum_exp) for _, log_sum_exp in answers if log_sum_exp is not None]
            found.append(
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
                )
            )
        return found

    def _answer(self, seed: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Its output, and the log-sum-exp of the pairs that it kept where it keeps some and not others."""
        call, what = self.candidate.call(self.exact, seed), self.candidate.what
        keeps = isinstance(what, Pattern) or what.shares_keys
        return call.with_log_sum_exp() if keeps else (call.output(), None)


def _held(call: Call) -> float:
    """Bytes at once: the tensors and what the plan needs beside them."""
    plan = call.plan()
    return plan.problem.nbytes + plan.cost.peak_bytes


def _check(seeds: Sequence[int], tolerance: float, rounds: int) -> None:
    whole("rounds", rounds, 1)
    for seed in seeds:
        whole("a seed", seed)
    if not len(seeds):
        raise ArgumentError("seeds is empty; what draws at random needs one at least, such as range(5)")
    if not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
        raise ArgumentError(f"tolerance is {tolerance!r}; it is the error that is borne, a number above 0 such as 0.1")


def _check_exact(exact: Exact) -> None:
    size = float(exact.output.float().norm())
    if not 0 < size < math.inf:
        words = "zero everywhere" if size == 0 else "not finite"
        raise ArgumentError(
            f"exact attention of these tensors is {words} (shape {tuple(exact.output.shape)}), so that no error can "
            f"be told relative to it; give queries, keys and values of a real call"
        )
