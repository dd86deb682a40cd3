"""Error against time as a picture: what a candidate loses beside what it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from regard.errors import ArgumentError
from regard.inspection.canvas import FAINT, INK, checked_path, drawable, new_figure, save
from regard.inspection.quality.exact import THIS_CALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regard.inspection.quality.report import Approximation, Row

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")  # Okabe and Ito's
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")
LEAST = 1e-6  # errors below are drawn here: a logarithm has no 0
LETTERS = 16  # of what is written beside a point


def draw_errors(report: Approximation, path: str | Path) -> None:
    """Error over time, both relative to exact attention: a line for each family, its parameter beside each point.

    Lines of what is compared with something else than the call are dashed, and their marks are hollow.

    Raises:
        ArgumentError: nothing was compared, or a path that is no PNG or has no folder.
    """
    path = checked_path(path)
    lines = _lines(report)
    if not lines:
        raise ArgumentError("nothing was compared, so that there is nothing to draw; the report says why")
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
    """Where exact attention's time is, and the tolerance; both axes are logarithms, marked with plain numbers."""
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
    found: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        if math.isfinite(row.error):
            found.setdefault((row.family, row.against), []).append(row)
    return found
