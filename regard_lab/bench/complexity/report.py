"""The table as text and Markdown: fitted exponents beside the promised ones, and crossovers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.bench.complexity.rows import ROWS, CostGrowth, CostRow, slope
from regard_lab.bench.measuring import Pace
from regard_lab.bench.report import aligned, markdown_table, measured_on, seconds
from regard_lab.bench.results import Results

NEAR = 0.15  # the largest difference of exponents with which a promise is kept
LARGE = 4 * 2**20  # memory below this number of bytes is not used for a fit
Points = Sequence[Mapping[str, Any]]


@brief
@dataclass
class CostTable(Results):
    """Results of all rows by name: times and memory by length, and the error against another backend."""

    file: ClassVar[str] = "complexity.json"

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The records of the rows, by name."""
        return self.cases

    @property
    def our_mistakes(self) -> list[str]:
        """Rows with a wrong result or none."""
        return [f"{name}: {row['reason']}" for name, row in self.rows.items() if "reason" in row]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Args:
        trusted: a length counts if its call takes at least this many seconds.
        wanted: the least number of lengths that count.
        reach: the least length that every row is measured at, to find crossovers.
        longest: the most seconds of a call; a row ends before a length that would take longer.
        pace: number of samples of each length.
    """

    trusted: float
    wanted: int
    reach: int
    longest: float
    pace: Pace


EFFORTS = {  # by `quick`
    False: Effort(0.020, 4, 192**2, 8.0, Pace(rounds=5, slow_rounds=2)),
    True: Effort(0.004, 3, 48**2, 0.5, Pace(rounds=3, slow_rounds=1, slow=0.2)),
}


@dataclass(frozen=True)
class Fit:
    """A fitted exponent and the promised one, over the same lengths.

    Args:
        found: the fitted exponent; None with fewer than two lengths.
        promised: the exponent that the same fit gives for the promised growth.
        lengths: the lengths of the fit.
    """

    found: float | None
    promised: float | None
    lengths: tuple[int, ...]

    @property
    def near(self) -> bool:
        """Whether the exponents differ by at most 0.15."""
        return (
            self.found is not None
            and self.promised is not None
            and abs(self.found - self.promised) <= NEAR
        )

    @property
    def near_or_below(self) -> bool:
        """Whether it grows at most as promised, with 0.15 of tolerance."""
        return (
            self.found is not None
            and self.promised is not None
            and self.found <= self.promised + NEAR
        )

    @classmethod
    def of(cls, points: Points, key: str, least: float, growth: CostGrowth) -> Fit:
        """The fit over the points whose `key` is at least `least`."""
        lengths, values = _counted(points, key, least)
        if len(lengths) < 2:
            return cls(None, None, tuple(lengths))
        return cls(slope(lengths, values), growth.exponent(lengths), tuple(lengths))


@brief
@dataclass(frozen=True)
class Reading:
    """The evaluation of a row: fits of time and memory, remarks, and the length from which it is cheaper than exact."""

    time: Fit
    memory: Fit
    remarks: tuple[str, ...]
    crossover: str


def read_row(
    row: CostRow, record: Mapping[str, Any], exact: Mapping[str, Any] | None, trusted: float
) -> Reading:
    """Evaluate the record of a row.

    Args:
        row: the declaration.
        record: its measurements.
        exact: the record of the row it is compared with, if measured.
        trusted: times below this number of seconds are not used for the fit.
    """
    times = record["times"]
    memory = record["memory"]
    time_fit = Fit.of(times, "median", trusted, row.growth)
    memory_fit = Fit.of(memory, "bytes", LARGE, row.memory)
    remarks = [*_why_time(time_fit, times, trusted), *_why_memory(memory_fit, memory)]
    remarks += [record[name] for name in ("reason", "ended", "memory_reason") if name in record]
    crossing = "" if not row.exact or exact is None else crossover(times, exact["times"])
    return Reading(time_fit, memory_fit, tuple(remarks), crossing)


def _counted(points: Points, key: str, least: float) -> tuple[list[int], list[float]]:
    counted = [point for point in points if point[key] >= least]
    return [point["length"] for point in counted], [point[key] for point in counted]


def _why_time(fit: Fit, times: Points, trusted: float) -> list[str]:
    """Remarks on a missed promise: the exponent of time is that of the operations minus that of their rate."""
    said = (
        [f"{len(fit.lengths)} lengths take {1e3 * trusted:g} ms or more"]
        if len(fit.lengths) < 3
        else []
    )
    if fit.found is None or fit.near:
        return said
    counted = [point for point in times if point["length"] in fit.lengths]
    operations = slope(fit.lengths, [point["operations"] for point in counted])
    first, last = (
        point["operations"] / point["median"] / 1e9 for point in (counted[0], counted[-1])
    )
    words = (
        f"its operations grow as n^{operations:.2f}, and run at {first:.3g} to {last:.3g} GFLOP/s"
    )
    ends = slope(fit.lengths[-2:], [point["median"] for point in counted[-2:]])
    return [
        *said,
        f"{words} from n={fit.lengths[0]:,} to {fit.lengths[-1]:,}; the last two lengths show n^{ends:.2f}",
    ]


def _why_memory(fit: Fit, memory: Points) -> list[str]:
    if fit.near or not memory:
        return []
    if fit.found is None:
        most = max(point["bytes"] for point in memory) / 2**20
        return [f"it needs {most:.1f} MiB at the longest, too little to measure its growth"]
    first, last = (
        point for point in memory if point["length"] in (fit.lengths[0], fit.lengths[-1])
    )
    each = (point["bytes"] / point["length"] for point in (first, last))
    return [
        f"memory per position: {next(each):,.0f} bytes at n={first['length']:,}, {next(each):,.0f} at the longest"
    ]


def crossover(times: Points, exact: Points) -> str:
    """The length from which a row is cheaper than exact attention, interpolated between two measured lengths."""
    mine, theirs = (
        {point["length"]: point["median"] for point in points} for points in (times, exact)
    )
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return "no length in common"
    slower = [mine[n] >= theirs[n] for n in common]
    if slower[-1]:
        return f"not up to {common[-1]:,}"
    if not any(slower):
        return f"cheaper from {common[0]:,} on"
    at = max(index for index, answer in enumerate(slower) if answer)
    below = common[at]
    above = common[at + 1]
    low, high = (math.log(mine[n] / theirs[n]) for n in (below, above))
    return f"{below * (above / below) ** (low / (low - high)):,.0f}"


FILE = "complexity.md"
HEAD = (
    "layer",
    "promised",
    "sequential",
    "path",
    "time exponent",
    "memory exponent",
    "cheaper than exact from",
)


def describe_table(table: CostTable) -> list[str]:
    """Format the table as lines of text."""
    return [*aligned([HEAD, *_rows(table)]), "", summary(table), *_remarks(table)]


def write_table(table: CostTable, folder: Path) -> None:
    """Write `complexity.md`: the table, remarks, every measurement, and how it was measured."""
    replace_file(folder / FILE, render_markdown(table).encode())


def render_markdown(table: CostTable) -> str:
    """The report as a page of Markdown."""
    trusted = EFFORTS[table.quick].trusted
    lines = [
        "# Time and memory by length",
        "",
        "How the cost of each layer grows with the length n of a text, compared with what its paper promises. An",
        "exponent of 2 means that a text twice as long costs 4 times as much. Exponents are fitted to the logarithms",
        "of the measured medians. The promised exponent is in brackets; it is fitted to the same lengths.",
        "",
        summary(table),
        "",
        *markdown_table(HEAD, _rows(table)),
        "",
        "## Remarks",
        "",
        *(f"- {remark}" for remark in _remarks(table)),
        "",
        "## Every measurement",
        "",
        *markdown_table(("layer", "n", "CPU time", "memory"), _points(table)),
        "",
        "## How it was measured",
        "",
        f"- Command: `{table.command}`",
        "- One text and one head of 64 numbers, forward; CPU time on 1 thread",
        f"- Times below {1e3 * trusted:g} ms and memory below {LARGE // 2**20} MiB are not used for a fit",
        "- Memory is the peak of a separate process beside the layer's tensors",
        *measured_on(table),
    ]
    return "\n".join(lines).rstrip() + "\n"


def summary(table: CostTable) -> str:
    """How many rows keep their promise."""
    readings = _readings(table)
    near = sum(reading.time.near for reading in readings.values())
    fitted = [reading.memory for reading in readings.values() if reading.memory.found is not None]
    kept = sum(fit.near_or_below for fit in fitted)
    time = f"The exponent of time is within 0.15 of the promised one in {near} of {len(readings)} rows."
    return (
        f"{time} That of memory is within 0.15 of it, or below, in {kept} of {len(fitted)}."
        if fitted
        else time
    )


def _readings(table: CostTable) -> dict[str, Reading]:
    trusted = EFFORTS[table.quick].trusted
    measured = {name: table.rows[name] for name in ROWS if name in table.rows}
    return {
        name: read_row(ROWS[name], record, table.rows.get(ROWS[name].exact), trusted)
        for name, record in measured.items()
    }


def _rows(table: CostTable) -> Iterator[tuple[str, ...]]:
    for name, reading in _readings(table).items():
        row = ROWS[name]
        exponents = (_exponents(reading.time), _exponents(reading.memory))
        yield row.title, row.cost, row.sequential, row.path, *exponents, reading.crossover


def _exponents(fit: Fit) -> str:
    """The fitted exponent, with the promised one in brackets.

    >>> _exponents(Fit(1.03, 1.0, (4, 8)))
    '1.03 (1.00)'
    """
    return "" if fit.found is None else f"{fit.found:.2f} ({fit.promised:.2f})"


def _remarks(table: CostTable) -> list[str]:
    """Remarks and corrections for each row."""
    return [
        f"{ROWS[name].title}: {'; '.join([*reading.remarks, *filter(None, [ROWS[name].correction])])}."
        for name, reading in _readings(table).items()
        if reading.remarks or ROWS[name].correction
    ]


def _points(table: CostTable) -> Iterator[tuple[str, ...]]:
    for name in table.rows:
        held = {
            point["length"]: f"{point['bytes'] / 2**20:.1f} MiB"
            for point in table.rows[name]["memory"]
        }
        for point in table.rows[name]["times"]:
            n = point["length"]
            yield ROWS[name].title, f"{n:,}", seconds(point["median"]), held.get(n, "")
