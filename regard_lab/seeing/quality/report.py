"""Compares every candidate with exact attention of the same call; the report as a table, as JSON and as a picture.

Errors and memory are exact; times are taken in turns. The picture shows error against time.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard.patterns import Pattern, as_pattern
from regard.patterns.arguments import whole
from regard.reprs import brief
from regard_lab.seeing.canvas import FAINT, INK, LINES, MARKS, checked_path, drawable, new_figure, save
from regard_lab.seeing.quality.candidates import (
    THIS_CALL,
    UNTRAINED,
    AttentionCall,
    Candidate,
    Exact,
    Given,
    as_candidate,
    exact_of,
    exact_results,
    sweep,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEAST = 1e-6  # smaller errors are drawn here, since the axis is logarithmic
LETTERS = 16  # the most characters of a label beside a point
SHORTEST = 0.002  # seconds; a shorter call is repeated within its turn


def draw_errors(report: Approximation, path: str | Path) -> None:
    """Draw error over time, both relative to exact attention: a line for each family with parameters as labels.

    Families that are compared with something other than the call have dashed lines and hollow markers.

    Raises:
        ArgumentError: nothing was compared, the path ends in neither .png nor .svg, or its folder does not exist.
    """
    path = checked_path(path)
    lines = _lines(report)
    if not lines:
        raise ArgumentError("nothing was compared, so there is nothing to draw; the report lists the reasons")
    with new_figure() as figure:
        figure.set_size_inches(9.5, 5.6)
        axes = figure.add_subplot()
        families = list(dict.fromkeys(family for family, _ in lines))
        for (family, against), rows in lines.items():
            number = families.index(family)
            look = LINES[number % len(LINES)], MARKS[number % len(MARKS)]
            _draw_line(axes, rows, *look, family if against == THIS_CALL else f"{family} (against {against})")
        _draw_borders(axes, report.tolerance)
        axes.set_xlabel("time of a call / that of exact attention  (left is faster)", color=INK)
        axes.set_ylabel("relative error of the output  (lower is closer)", color=INK)
        axes.set_title(fill(drawable(report.problem), 110), fontsize=8.5, parse_math=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)
        figure.set_layout_engine("tight")
        save(figure, path)


def _draw_line(axes: Axes, rows: Sequence[CandidateRow], colour: str, mark: str, label: str) -> None:
    times, errors = [row.time_ratio for row in rows], [max(row.error, LEAST) for row in rows]
    of_call = rows[0].against == THIS_CALL
    axes.errorbar(
        times, errors, [row.spread or 0 for row in rows], color=colour, marker=mark, markersize=6, capsize=2,
        markerfacecolor=colour if of_call else "white", linestyle="-" if of_call else "--", linewidth=1,
        label=drawable(label),
    )  # fmt: skip
    for row, took, error in zip(rows, times, errors, strict=True):
        if not row.knob:
            continue
        axes.annotate(
            drawable(row.knob[:LETTERS]), (took, error), (5, 4), textcoords="offset points", fontsize=7, color=colour,
            parse_math=False,
        )  # fmt: skip


def _draw_borders(axes: Axes, tolerance: float) -> None:
    """Draw lines at the time of exact attention and at the tolerance, and set up logarithmic axes."""
    from matplotlib.ticker import LogLocator

    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.minorticks_off()
    axes.axvline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.axhline(tolerance, color=FAINT, linewidth=1, linestyle=":")
    axes.text(1, 0.99, "exact attention ", transform=axes.get_xaxis_transform(), rotation=90, ha="right", va="top",
              fontsize=7.5, color=FAINT)  # fmt: skip
    axes.text(0.995, tolerance, f"tolerance {tolerance:g}", transform=axes.get_yaxis_transform(), ha="right",
              va="bottom", fontsize=7.5, color=FAINT)  # fmt: skip
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(report: Approximation) -> dict[tuple[str, str], list[CandidateRow]]:
    """Rows by family and by what they are compared with."""
    lines: dict[tuple[str, str], list[CandidateRow]] = {}
    for row in report.rows:
        if math.isfinite(row.error):
            lines.setdefault((row.family, row.against), []).append(row)
    return lines


LONGEST = 56  # the most characters of a name in the table
LEGEND = (
    "error: |output - exact| / |exact|.",
    "worst row: the largest error of a query, over the root mean square of the sizes of all outputs.",
    "mass: the share of the exact weights that lies on the kept pairs. time, memory: 1 is that of exact attention.",
    "time is CPU time on 1 thread (elapsed time on a GPU), in turns with exact attention.",
)
COLUMNS = ("error", "± seeds", "worst row", "mass", "time", "memory", "by", "against")


@brief
@dataclass(frozen=True)
class CandidateRow:
    """One candidate compared with one exact result.

    error: relative error, the mean over the seeds; spread: its standard deviation, None if nothing is random.
    worst_row: the largest error of a row, relative to the root mean square of the sizes of rows, over all seeds.
    mass: the share of the exact softmax weight on the kept pairs, 0 to 1; None if the candidate uses every pair.
    seconds, bytes: of one call; time_ratio, memory_ratio: relative to exact attention; below 1 is cheaper.
    text: the pattern or mechanism with all its settings, as `parse` reads it.
    """

    name: str
    family: str
    knob: str
    against: str
    backend: str
    error: float
    spread: float | None
    worst_row: float
    mass: float | None
    seconds: float
    time_ratio: float
    bytes: float
    memory_ratio: float
    text: str = ""

    @property
    def is_untrained(self) -> bool:
        """Whether its parameters were drawn, so that its error means nothing for a trained model."""
        return self.name.endswith(f"({UNTRAINED})")


@dataclass(frozen=True)
class LeftOut:
    """A candidate that was not compared, and why."""

    name: str
    family: str
    reason: str


@brief
@dataclass(frozen=True)
class Approximation:
    """The report of `approximation`.

    problem: the call in words; backend, seconds, bytes: of exact attention; seeds: their number.
    """

    problem: str
    backend: str
    seconds: float
    bytes: float
    tolerance: float
    seeds: int
    rows: tuple[CandidateRow, ...]
    left_out: tuple[LeftOut, ...]

    def suggested(self, family: str) -> CandidateRow | None:
        """The fastest row of a family whose error is within the tolerance, or None. Untrained rows do not count."""
        fitting = [row for row in self._trained(family) if row.error <= self.tolerance]
        return min(fitting, key=lambda row: row.time_ratio, default=None)

    @property
    def suggestions(self) -> dict[str, str]:
        """For each family a sentence with the fastest candidate within the tolerance, or why there is none."""
        return {family: self._suggestion(family) for family in dict.fromkeys(row.family for row in self.rows)}

    def to_json(self) -> str:
        """The report as JSON text; non-finite numbers become null."""
        record = asdict(self) | {"suggestions": self.suggestions}
        return json.dumps(_finite(record), ensure_ascii=False, indent=1)

    def plot(self, path: str | Path) -> None:
        """Draw error against time, a line for each family, into a PNG or SVG.

        Raises:
            ArgumentError: nothing was compared, the path ends in neither .png nor .svg, or its folder does not exist.
            MissingPackageError: matplotlib is not installed.
        """

        draw_errors(self, path)

    def __str__(self) -> str:
        table = [("", *COLUMNS), *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = [self.problem, f"exact: {self.backend}, {_time(self.seconds)}, {_size(self.bytes)} with its tensors"]
        lines += [_aligned(line, widths) for line in table]
        lines += [
            "",
            f"Within an error of {self.tolerance:g} (mean over {count_of(self.seeds, 'seeds')} for random candidates):",
        ]
        lines += [f"  {sentence}" for sentence in self.suggestions.values()]
        lines += ["", *LEGEND]
        if any(UNTRAINED in row.name for row in self.rows):
            lines += [f"{UNTRAINED}: its parameters are random, so its error says nothing about a trained model."]
        if self.left_out:
            lines += ["", "Left out:", *(f"  {one.name}: {one.reason}" for one in self.left_out)]
        return "\n".join(lines)

    def _of(self, family: str) -> list[CandidateRow]:
        """The rows of a family against its first reference, which is the call itself if there are several."""
        rows = [row for row in self.rows if row.family == family]
        first = rows[0].against if rows else ""
        return [row for row in rows if row.against == first]

    def _trained(self, family: str) -> list[CandidateRow]:
        """The rows of a family that can be suggested."""
        return [row for row in self._of(family) if not row.is_untrained]

    def _suggestion(self, family: str) -> str:
        row = self.suggested(family)
        trained = self._trained(family)
        if not trained:
            return f"{family}: none; its parameters have to be learned, and here they are random"
        if row is None:
            nearest = min(trained, key=lambda one: math.inf if math.isnan(one.error) else one.error)
            return f"{family}: none; the closest is {nearest.name} with {nearest.error:.3g}"
        pays = "" if row.time_ratio < 1 else ", so exact attention is the better choice here"
        return f"{family}: {row.name}, error {row.error:.3g} in {row.time_ratio:.2f} of the exact time{pays}"


def _cells(row: CandidateRow) -> tuple[str, ...]:
    name = row.name if len(row.name) <= LONGEST else row.name[: LONGEST - 1] + "…"
    return (
        name,
        f"{row.error:.3g}",
        "-" if row.spread is None else f"{row.spread:.2g}",
        f"{row.worst_row:.3g}",
        "-" if row.mass is None else f"{row.mass:.1%}",
        f"{row.time_ratio:.2f}",
        f"{row.memory_ratio:.2f}",
        row.backend,
        row.against,
    )


def _aligned(cells: Iterable[str], widths: list[int]) -> str:
    words = (0, len(widths) - 2, len(widths) - 1)  # columns of text are aligned left, numbers right
    padded = (
        cell.ljust(width) if at in words else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _finite(record: Any) -> Any:
    if isinstance(record, dict):
        return {name: _finite(one) for name, one in record.items()}
    if isinstance(record, list | tuple):
        return [_finite(one) for one in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(number: float) -> str:
    return f"{number / 1e6:.3g} MB"


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
            first seed, and mean nothing for quality: the row is marked "untrained".
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
    call = AttentionCall(q, k, v, as_pattern(pattern), {"scale": scale, "q_start": q_start})
    plan, exact = call.plan(), exact_of(call)
    _check_exact(exact)
    comparisons, left_out = [], []
    for candidate in sweep(call) if mechanisms is None else [as_candidate(one) for one in mechanisms]:
        candidate = candidate.prepared(call, seeds[0])
        reason = candidate.reason_against(call)
        if reason is None:
            comparisons.append(CandidateComparison(candidate, call, tuple(seeds) if candidate.random else (None,)))
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
class CandidateComparison:
    """A candidate, the exact call, and the seeds to compute it with."""

    candidate: Candidate
    exact: AttentionCall
    seeds: tuple[int | None, ...]

    @property
    def timed(self) -> AttentionCall:
        """The call that is timed, with the first seed."""
        return self.candidate.call(self.exact, self.seeds[0])

    def rows(
        self, known: dict[str, Exact], seconds: float, exact_seconds: float, exact_bytes: float
    ) -> list[CandidateRow]:
        """A row for each exact result that the candidate is compared with; `known` caches exact results."""
        plan, held = self.timed.plan(), _held(self.timed)
        results = [self._result(seed) for seed in self.seeds]
        rows = []
        for against, exact in exact_results(self.exact, self.candidate.what, known).items():
            errors, worst = zip(*(exact.errors(output) for output, _ in results), strict=True)
            kept = [exact.mass(log_sum_exp) for _, log_sum_exp in results if log_sum_exp is not None]
            rows.append(
                CandidateRow(
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

    def _result(self, seed: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output of the candidate, and the log-sum-exp of its kept pairs if it masks pairs, else None."""
        call, what = self.candidate.call(self.exact, seed), self.candidate.what
        keeps = isinstance(what, Pattern) or what.shares_keys
        return call.with_log_sum_exp() if keeps else (call.output(), None)


def _held(call: AttentionCall) -> float:
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


# Time


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    """The median time of each call over `rounds` rounds, in each of which every call is measured once.

    On the CPU it is CPU time on one thread: that of several depends on how busy the machine is. On other devices it is
    elapsed time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _medians(calls, rounds, device)
    finally:
        torch.set_num_threads(threads)


def _medians(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    repeats = [max(1, round(SHORTEST / max(_seconds(call, 1, device), 1e-7))) for call in calls]  # also warms up
    samples: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for turn in range(len(calls)):
            at = (number + turn) % len(calls)
            samples[at].append(_seconds(calls[at], repeats[at], device))
    return [statistics.median(times) for times in samples]


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
