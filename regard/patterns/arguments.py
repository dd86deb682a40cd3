"""What the numbers of a pattern must be."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import index

from regard.errors import ArgumentError
from regard.patterns.ranges import Ranges

MOST = 1_000_000  # positions named one by one


def whole(name: str, number: object, least: int | None = None) -> int:
    """The number, if it is a whole one of at least `least`."""
    rule = "a whole number" if least is None else f"a whole number, {least} or more"
    if isinstance(number, bool) or not isinstance(number, int) or (least is not None and number < least):
        raise ArgumentError(f"{name} is {number!r}; it needs {rule}")
    if not -(2**63) <= number < 2**63:
        raise ArgumentError(f"{name} is {number}; positions are counted in 64 bits")
    return number


def positions(name: str, numbers: Iterable[int]) -> tuple[int, ...]:
    """Distinct positions in order.

    >>> positions("indices", [3, 0, 3])
    (0, 3)
    """
    try:
        found = [position if isinstance(position, bool) else index(position) for position in islice(numbers, MOST + 1)]
    except TypeError:
        raise ArgumentError(f"{name} is {numbers!r}; it needs positions, such as [0, 5] or range(128)") from None
    if len(found) > MOST:
        raise ArgumentError(f"{name} names more than {MOST} positions; for a long span there is key_span(start, stop)")
    return tuple(sorted({whole(f"a position of {name}", position, 0) for position in found}))


def runs(numbers: Iterable[int]) -> Ranges:
    """The same positions as ranges."""
    ordered = sorted(set(numbers))
    starts = [number for before, number in zip([None, *ordered], ordered, strict=False) if before != number - 1]
    lasts = [number for number, after in zip(ordered, [*ordered[1:], None], strict=False) if after != number + 1]
    return tuple(range(start, last + 1) for start, last in zip(starts, lasts, strict=True))


def words(ranges: Ranges) -> str:
    """Ranges as a text names them, both ends included; one or two positions by themselves.

    >>> words((range(0, 2), range(5, 9)))
    '0, 1, 5..8'
    """
    named = []
    for one in ranges:
        named += [f"{one[0]}..{one[-1]}"] if len(one) > 2 else [str(number) for number in one]
    return ", ".join(named)


def yes_or_no(name: str, value: object) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {value!r}; it is True or False")
    return value
