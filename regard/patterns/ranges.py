"""Sets of positions as sorted, disjoint ranges: a million neighbouring positions are stored as two numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

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
    for one in sorted((one for one in ranges if one), key=lambda one: one.start):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return tuple(joined)


def common(one: Ranges, other: Ranges) -> Ranges:
    """Positions in both.

    >>> common((range(0, 5), range(8, 9)), (range(3, 10),))
    (range(3, 5), range(8, 9))
    """
    shared = []
    at = 0
    for here in one:
        while at < len(other) and other[at].stop <= here.start:
            at += 1
        look = at
        while look < len(other) and other[look].start < here.stop:
            shared.append(
                range(max(here.start, other[look].start), min(here.stop, other[look].stop))
            )
            look += 1
    return tuple(shared)


def outside(ranges: Ranges, length: int) -> Ranges:
    """Positions 0 .. length - 1 in none of them.

    >>> outside((range(2, 3),), 5)
    (range(0, 2), range(3, 5))
    """
    edges = [0, *(edge for one in ranges for edge in (one.start, one.stop)), length]
    return tuple(
        range(*pair) for pair in zip(edges[::2], edges[1::2], strict=True) if pair[0] < pair[1]
    )


def without(one: Ranges, other: Ranges) -> Ranges:
    """Positions in the first and not in the second."""
    return common(one, outside(other, one[-1].stop)) if one and other else one


def covers(ranges: Ranges, keys: range) -> bool:
    return not keys or any(one.start <= keys.start and keys.stop <= one.stop for one in ranges)


def meets(ranges: Ranges, keys: range) -> bool:
    return any(one.start < keys.stop and keys.start < one.stop for one in ranges)


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
    return Segments(
        reduce(common, (one.full for one in rows)), union(keys for one in rows for keys in one.some)
    )


def size(ranges: Ranges) -> int:
    return sum(map(len, ranges))
