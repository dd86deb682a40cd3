"""What the measurements of a row say: the fitted exponents beside the promised ones, and where the row gets cheaper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.complexity.growth import CostGrowth, slope
from benchmarks.complexity.results import CostTable
from benchmarks.complexity.rows import ROWS, CostRow

NEAR = 0.15  # the largest difference of exponents with which a promise is kept
LEAST_BYTES = 4 * 2**20  # less memory than this is not used for a fit
FEW_LENGTHS = 3  # with fewer of them a remark says so

Record = Mapping[str, Any]
Points = Sequence[Record]


@dataclass(frozen=True)
class Fit:
    """A fitted exponent and the promised one, over the same lengths.

    Args:
        fitted: the fitted exponent; None with fewer than two lengths.
        promised: the exponent that the same fit gives for the promised growth.
        lengths: the lengths of the fit.
    """

    fitted: float | None
    promised: float | None
    lengths: tuple[int, ...]

    @property
    def near(self) -> bool:
        """Whether the exponents differ by at most 0.15."""
        if self.fitted is None or self.promised is None:
            return False
        return abs(self.fitted - self.promised) <= NEAR

    @property
    def near_or_below(self) -> bool:
        """Whether it grows at most as promised, with 0.15 of tolerance."""
        if self.fitted is None or self.promised is None:
            return False
        return self.fitted <= self.promised + NEAR

    @classmethod
    def of(cls, points: Points, key: str, least: float, growth: CostGrowth) -> Fit:
        """The fit over the points whose `key` is at least `least`."""
        counted = [point for point in points if point[key] >= least]
        lengths = tuple(_column(counted, "length"))
        if len(lengths) < 2:
            return cls(None, None, lengths)
        fitted = slope(lengths, _column(counted, key))
        return cls(fitted, growth.exponent(lengths), lengths)


@dataclass(frozen=True)
class Reading:
    """The evaluation of a row: fits of time and memory, remarks, and the length from which it is cheaper than exact."""

    time: Fit
    memory: Fit
    remarks: tuple[str, ...]
    crossover: str


def read_table(table: CostTable) -> dict[str, Reading]:
    """Evaluate every row that was measured, in the order of `ROWS`."""
    readings = {}
    for name, row in ROWS.items():
        if name in table.rows:
            exact = table.rows.get(row.exact)
            readings[name] = read_row(row, table.rows[name], exact, table.effort.trusted)
    return readings


def read_row(row: CostRow, record: Record, exact: Record | None, trusted: float) -> Reading:
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
    memory_fit = Fit.of(memory, "bytes", LEAST_BYTES, row.memory)

    remarks = _remarks_on_time(time_fit, times, trusted) + _remarks_on_memory(memory_fit, memory)
    remarks += [record[key] for key in ("reason", "ended", "memory_reason") if key in record]
    cheaper_from = ""
    if row.exact and exact is not None:
        cheaper_from = crossover(times, exact["times"])
    return Reading(time_fit, memory_fit, tuple(remarks), cheaper_from)


def _column(points: Points, key: str) -> list[Any]:
    return [point[key] for point in points]


def _by_length(points: Points, key: str) -> dict[int, Any]:
    return dict(zip(_column(points, "length"), _column(points, key), strict=True))


def _remarks_on_time(fit: Fit, times: Points, trusted: float) -> list[str]:
    """Remarks on a missed promise: the exponent of time is that of the operations minus that of their rate."""
    remarks = []
    if len(fit.lengths) < FEW_LENGTHS:
        remarks.append(f"{len(fit.lengths)} lengths take {1e3 * trusted:g} ms or more")
    if fit.fitted is None or fit.near:
        return remarks

    counted = [point for point in times if point["length"] in fit.lengths]
    rates = [point["operations"] / point["median"] / 1e9 for point in counted]
    operations = slope(fit.lengths, _column(counted, "operations"))
    last_two = slope(fit.lengths[-2:], _column(counted[-2:], "median"))
    remarks.append(
        f"its operations grow as n^{operations:.2f}, and run at {rates[0]:.3g} to "
        f"{rates[-1]:.3g} GFLOP/s from n={fit.lengths[0]:,} to {fit.lengths[-1]:,}; the last two "
        f"lengths show n^{last_two:.2f}"
    )
    return remarks


def _remarks_on_memory(fit: Fit, memory: Points) -> list[str]:
    if fit.near or not memory:
        return []
    if fit.fitted is None:
        most = max(_column(memory, "bytes")) / 2**20
        return [f"it needs {most:.1f} MiB at the longest, too little to measure its growth"]

    bytes_at = _by_length(memory, "bytes")
    shortest, *_, longest = fit.lengths
    return [
        f"memory per position: {bytes_at[shortest] / shortest:,.0f} bytes at n={shortest:,}, "
        f"{bytes_at[longest] / longest:,.0f} at the longest"
    ]


def crossover(times: Points, exact: Points) -> str:
    """The length from which a row is cheaper than exact attention, interpolated between two measured lengths."""
    row_times = _by_length(times, "median")
    exact_times = _by_length(exact, "median")
    lengths = sorted(row_times.keys() & exact_times.keys())
    if not lengths:
        return "no length in common"
    slower = [n for n in lengths if row_times[n] >= exact_times[n]]
    if not slower:
        return f"cheaper from {lengths[0]:,} on"
    if slower[-1] == lengths[-1]:
        return f"not up to {lengths[-1]:,}"

    below = slower[-1]
    above = lengths[lengths.index(below) + 1]
    log_ratio_below = math.log(row_times[below] / exact_times[below])
    log_ratio_above = math.log(row_times[above] / exact_times[above])
    share = log_ratio_below / (log_ratio_below - log_ratio_above)
    return f"{below * (above / below) ** share:,.0f}"
