"""Sets of positions as sorted, disjoint ranges: a million neighbouring positions are stored as two numbers.

A plan asks these functions some hundred times, so they are loops without functions and generators inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import attrgetter

Ranges = tuple[range, ...]


@dataclass(frozen=True)
class Segments:
    """The keys of some neighbouring queries: each query may look at all of `full`, and none at a key outside `some`."""

    full: Ranges
    some: Ranges


def union(ranges: Iterable[range]) -> Ranges:
    """Positions in any of the ranges.

    >>> union([range(5, 7), range(0, 3), range(2, 5)])
    (range(0, 7),)
    """
    joined: list[range] = []
    for keys in sorted(filter(None, ranges), key=attrgetter("start")):
        if joined and keys.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, keys.stop))
        else:
            joined.append(keys)
    return tuple(joined)


def common(ranges: Ranges, other: Ranges) -> Ranges:
    """Positions in both.

    >>> common((range(0, 5), range(8, 9)), (range(3, 10),))
    (range(3, 5), range(8, 9))
    """
    shared = []
    first = 0  # the first range of the other that does not end before this one
    for keys in ranges:
        while first < len(other) and other[first].stop <= keys.start:
            first += 1
        number = first
        while number < len(other) and other[number].start < keys.stop:
            part = other[number]
            shared.append(range(max(keys.start, part.start), min(keys.stop, part.stop)))
            number += 1
    return tuple(shared)


def outside(ranges: Ranges, length: int) -> Ranges:
    """Positions 0 .. length - 1 in none of them.

    >>> outside((range(2, 3),), 5)
    (range(0, 2), range(3, 5))
    """
    gaps = []
    start = 0
    for keys in ranges:
        gaps.append(range(start, keys.start))
        start = keys.stop
    gaps.append(range(start, length))
    return tuple(filter(None, gaps))


def without(ranges: Ranges, removed: Ranges) -> Ranges:
    """Positions in the first and not in the second.

    >>> without((range(0, 5), range(8, 9)), (range(1, 3), range(4, 8)))
    (range(0, 1), range(3, 4), range(8, 9))
    """
    left = []
    first = 0  # the first removed range that does not end before this one
    for keys in ranges:
        start = keys.start
        while first < len(removed) and removed[first].stop <= start:
            first += 1
        for part in removed[first:]:
            if part.start >= keys.stop:
                break
            if start < part.start:
                left.append(range(start, part.start))
            start = part.stop
        if start < keys.stop:
            left.append(range(start, keys.stop))
    return tuple(left)


def covers(ranges: Ranges, keys: range) -> bool:
    """Whether one of the ranges holds all of `keys`."""
    if not keys:
        return True
    for part in ranges:
        if part.start <= keys.start and keys.stop <= part.stop:
            return True
    return False


def meets(ranges: Ranges, keys: range) -> bool:
    """Whether some position is in the ranges and in `keys`."""
    for part in ranges:
        if part.start < keys.stop and keys.start < part.stop:
            return True
    return False


def everything(k_len: int) -> Ranges:
    return (range(k_len),) if k_len > 0 else ()


def hull(ranges: Ranges) -> range:
    """The shortest range that holds them all.

    >>> hull((range(2, 3), range(5, 7)))
    range(2, 7)
    """
    return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)


def over_rows(rows: Iterable[Segments]) -> Segments:
    """The keys that are certain for every batch row, and those that are possible for any.

    >>> over_rows([Segments((range(4),), (range(4),)), Segments((range(2, 6),), (range(2, 9),))])
    Segments(full=(range(2, 4),), some=(range(0, 9),))
    """
    rows = list(rows)
    full = reduce(common, (row.full for row in rows))
    some = union(chain.from_iterable(row.some for row in rows))
    return Segments(full, some)


def shifted(keys: range, by: int) -> range:
    """A range moved.

    >>> shifted(range(2, 5), 10)
    range(12, 15)
    """
    return range(keys.start + by, keys.stop + by)


def size(ranges: Ranges) -> int:
    """How many positions they hold."""
    return sum(map(len, ranges))
