"""What the points of a row say: its exponents, the reason where they differ from the promise, and its crossover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.bench.complexity.row import Growth, Row, slope

NEAR = 0.15  # a fitted exponent this near to the promised one keeps the promise
LARGE = 4 * 2**20  # bytes from which memory counts
Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Fit:
    """A fitted exponent beside the promised one, over the same lengths.

    Args:
        found: the exponent; None with fewer than two lengths.
        promised: what the fit would find if the promise were kept to the letter.
        lengths: those that counted.
    """

    found: float | None
    promised: float | None
    lengths: tuple[int, ...]

    @property
    def near(self) -> bool:
        """Is the found exponent within 0.15 of the promised one?"""
        return self.found is not None and self.promised is not None and abs(self.found - self.promised) <= NEAR

    @classmethod
    def of(cls, points: Points, key: str, least: float, growth: Growth) -> Fit:
        """Over the points of which `key` is at least `least`."""
        lengths, values = _counted(points, key, least)
        if len(lengths) < 2:
            return cls(None, None, tuple(lengths))
        return cls(slope(lengths, values), growth.exponent(lengths), tuple(lengths))


@dataclass(frozen=True)
class Reading:
    """What is said of a row: fits of time and memory, remarks on each, and where it becomes cheaper than exact."""

    time: Fit
    memory: Fit
    remarks: tuple[str, ...]
    crossover: str


def read_row(row: Row, record: Mapping[str, Any], exact: Mapping[str, Any] | None, trusted: float) -> Reading:
    """Read a record.

    Args:
        row: the declaration.
        record: what was measured of it.
        exact: the record of the row that it is compared with, if that was measured.
        trusted: seconds from which a time counts.
    """
    times, memory = record["times"], record["memory"]
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
    """An exponent is that of the operations less that of their rate: both are said where the promise is missed."""
    said = [f"{len(fit.lengths)} lengths take {1e3 * trusted:g} ms or more"] if len(fit.lengths) < 3 else []
    if fit.found is None or fit.near:
        return said
    counted = [point for point in times if point["length"] in fit.lengths]
    operations = slope(fit.lengths, [point["operations"] for point in counted])
    first, last = (point["operations"] / point["median"] / 1e9 for point in (counted[0], counted[-1]))
    words = f"its operations grow as n^{operations:.2f}, and run at {first:.3g} to {last:.3g} GFLOP/s"
    ends = slope(fit.lengths[-2:], [point["median"] for point in counted[-2:]])
    return [*said, f"{words} from n={fit.lengths[0]:,} to {fit.lengths[-1]:,}; the last two lengths show n^{ends:.2f}"]


def _why_memory(fit: Fit, memory: Points) -> list[str]:
    if fit.near or not memory:
        return []
    if fit.found is None:
        most = max(point["bytes"] for point in memory) / 2**20
        return [f"it holds {most:.1f} MiB at the longest, too little to tell how that grows"]
    first, last = (point for point in memory if point["length"] in (fit.lengths[0], fit.lengths[-1]))
    each = (point["bytes"] / point["length"] for point in (first, last))
    return [f"memory of a position: {next(each):,.0f} bytes at n={first['length']:,}, {next(each):,.0f} at the longest"]


def crossover(times: Points, exact: Points) -> str:
    """The length from which a row is cheaper than exact attention, on the straight line between two measured ones."""
    mine, theirs = ({point["length"]: point["median"] for point in points} for points in (times, exact))
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return "no length in common"
    dearer = [mine[n] >= theirs[n] for n in common]
    if dearer[-1]:
        return f"not up to {common[-1]:,}"
    if not any(dearer):
        return f"cheaper from {common[0]:,} on"
    at = max(index for index, answer in enumerate(dearer) if answer)
    below, above = common[at], common[at + 1]
    low, high = (math.log(mine[n] / theirs[n]) for n in (below, above))
    return f"{below * (above / below) ** (low / (low - high)):,.0f}"
