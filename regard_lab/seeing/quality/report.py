"""The report of `approximation` as a table, as JSON and as a picture of error against time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.canvas import FAINT, INK, checked_path, drawable, new_figure, save
from regard_lab.seeing.quality.call import THIS_CALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")  # Okabe and Ito's
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")
LEAST = 1e-6  # smaller errors are drawn here, since the axis is logarithmic
LETTERS = 16  # the most characters of a label beside a point


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
            look = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            _draw_line(axes, rows, *look, family if against == THIS_CALL else f"{family} (against {against})")
        _draw_borders(axes, report.tolerance)
        axes.set_xlabel("time of a call / that of exact attention  (left is faster)", color=INK)
        axes.set_ylabel("relative error of the output  (lower is closer)", color=INK)
        axes.set_title(fill(drawable(report.problem), 110), fontsize=8.5, parse_math=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)
        figure.set_layout_engine("tight")
        save(figure, path)


def _draw_line(axes: Axes, rows: Sequence[Row], colour: str, mark: str, label: str) -> None:
    times, errors = [row.time_ratio for row in rows], [max(row.error, LEAST) for row in rows]
    of_call = rows[0].against == THIS_CALL
    axes.errorbar(
        times, errors, [row.spread or 0 for row in rows], color=colour, marker=mark, markersize=6, capsize=2,
        markerfacecolor=colour if of_call else "white", linestyle="-" if of_call else "--", linewidth=1,
        label=drawable(label),
    )  # fmt: skip
    for row, time, error in zip(rows, times, errors, strict=True):
        if not row.knob:
            continue
        axes.annotate(
            drawable(row.knob[:LETTERS]), (time, error), (5, 4), textcoords="offset points", fontsize=7, color=colour,
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


def _lines(report: Approximation) -> dict[tuple[str, str], list[Row]]:
    """Rows by family and by what they are compared with."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        if math.isfinite(row.error):
            lines.setdefault((row.family, row.against), []).append(row)
    return lines


UNTRAINED = "untrained"  # in the names of candidates whose parameters were drawn
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
class Row:
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
        """Whether its parameters were drawn, so that its error says nothing about a trained model."""
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
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]

    def suggested(self, family: str) -> Row | None:
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

    def _of(self, family: str) -> list[Row]:
        """The rows of a family against its first reference, which is the call itself if there are several."""
        rows = [row for row in self.rows if row.family == family]
        first = rows[0].against if rows else ""
        return [row for row in rows if row.against == first]

    def _trained(self, family: str) -> list[Row]:
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


def _cells(row: Row) -> tuple[str, ...]:
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
