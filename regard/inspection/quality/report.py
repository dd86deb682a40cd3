"""What the comparison found: a table to read, JSON to keep, a picture to show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LONGEST = 56  # letters of a name in the table
COLUMNS = ("error", "± seeds", "worst row", "mass", "time", "memory", "by", "against")


@dataclass(frozen=True)
class Row:
    """One candidate against one exact attention.

    error: relative, the mean over the seeds; spread: its standard deviation, None where nothing is random.
    worst_row: the largest error of a row over the mean size of rows, of all seeds.
    mass: the share of exact softmax weight on the pairs kept, 0 to 1; None where every pair has a say.
    seconds, bytes: of one call; time_ratio, memory_ratio: over those of exact attention, below 1 is cheaper.
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


@dataclass(frozen=True)
class LeftOut:
    """A candidate that was not compared, and why."""

    name: str
    family: str
    reason: str


@dataclass(frozen=True)
class Approximation:
    """The report of `approximation`.

    problem: the call in words; backend, seconds, bytes: of its exact attention; seeds: how many were asked.
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
        """The fastest row of a family whose error is within the tolerance, or None."""
        fitting = [row for row in self._of(family) if row.error <= self.tolerance]
        return min(fitting, key=lambda row: row.time_ratio, default=None)

    @property
    def suggestions(self) -> dict[str, str]:
        """For each family a sentence: the fastest that is within the tolerance, or that none is."""
        return {family: self._suggestion(family) for family in dict.fromkeys(row.family for row in self.rows)}

    def to_json(self) -> str:
        """Everything as JSON text; numbers that are not finite are null."""
        record = asdict(self) | {"suggestions": self.suggestions}
        return json.dumps(_finite(record), ensure_ascii=False, indent=1)

    def plot(self, path: str | Path) -> None:
        """Draw error against time, a line for each family, into a PNG.

        Raises:
            ArgumentError: nothing was compared, or a path that is no PNG or has no folder.
            MissingPackageError: matplotlib is not installed.
        """
        from regard.inspection.quality.picture import draw_errors

        draw_errors(self, path)

    def __str__(self) -> str:
        table = [("", *COLUMNS), *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = [self.problem, f"exact: {self.backend}, {_time(self.seconds)}, {_size(self.bytes)} with its tensors"]
        lines += [_aligned(line, widths) for line in table]
        lines += ["", f"Within an error of {self.tolerance:g} (mean over {self.seeds} seeds where something is drawn):"]
        lines += [f"  {sentence}" for sentence in self.suggestions.values()]
        if self.left_out:
            lines += ["", "Left out:", *(f"  {one.name}: {one.reason}" for one in self.left_out)]
        return "\n".join(lines)

    def _of(self, family: str) -> list[Row]:
        """The rows of a family, against the call itself where it is compared with that."""
        rows = [row for row in self.rows if row.family == family]
        first = rows[0].against if rows else ""
        return [row for row in rows if row.against == first]

    def _suggestion(self, family: str) -> str:
        row = self.suggested(family)
        if row is None:
            nearest = min(self._of(family), key=lambda one: math.inf if math.isnan(one.error) else one.error)
            return f"{family}: none; the nearest is {nearest.name} with {nearest.error:.3g}"
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
    words = (0, len(widths) - 2, len(widths) - 1)  # these columns begin on the left, numbers end on the right
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
