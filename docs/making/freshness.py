"""Decides whether a generated page is stale; differences of times and of the last digit do not count.

Numbers are compared as numbers, the text between them as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from regard_lab.lessons.taught import MEASURED

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?e[-+]?\d+|[-−]?\d+\.\d+")  # 1.5, -0.25, 3.5e-17; whole numbers are text
TINY = 1e-12  # numbers below it are rounding errors of 0
CLOSE = 1e-4  # relative, and below 1 absolute: far above the rounding of float32, below what a picture shows


def alike(one: str, other: str) -> bool:
    """Whether two pages are the same, except for times and the last digit of numbers.

    >>> alike("3 of 4: 0.125", "3 of 4: 0.126"), alike("3 of 4: 0.125", "3 of 4: 0.135"), alike("3 of 4", "2 of 4")
    (True, False, False)
    >>> alike("off by 3.5e-17", "off by 1.1e-16"), alike("off by 3.5e-17", "off by 1.1e-06")
    (True, False)
    """
    one, other = stable(one), stable(other)
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    return all(map(within_one, NUMBER.findall(one), NUMBER.findall(other)))


def within_one(one: str, other: str) -> bool:
    """Whether two printed numbers have equally many digits and differ by at most 1 in the last, or are both tiny."""
    a, b = (Decimal(text.replace("−", "-")) for text in (one, other))
    if max(abs(a), abs(b)) < TINY:
        return True
    last = a.as_tuple().exponent
    return last == b.as_tuple().exponent and abs(a - b) <= Decimal((0, (1,), int(last)))


def close(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same, except for rounding of numbers.

    >>> close({"a": [1.0, 2]}, {"a": [1.00001, 2]}), close([0.333], [0.334]), close([1], [1, 2])
    (True, False, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE / 100) or (math.isnan(one) and math.isnan(other))
    return one == other


def stable(text: str) -> str:
    """A page without the rows of tables that depend on the machine.

    >>> "3 ms" in stable(f"### Time\\n\\n{MEASURED}\\n\\n| n |\\n|---|\\n| 3 ms |\\n\\nEnd")
    False
    """
    return "\n\n".join(part for part, measured in _parts(text) if not measured)


def settled(new: str, old: str) -> str:
    r"""A new page with the last digits of the old one, where nothing else of a paragraph or table changed.

    >>> old = f"# One\n\n{MEASURED}\n\n| n | time |\n|---|---|\n| 8 | 3 ms |\n\n0.125"
    >>> settled(old.replace("3 ms", "4 ms").replace("0.125", "0.126").replace("One", "Two"), old) == (
    ...     old.replace("One", "Two").replace("3 ms", "4 ms"))
    True
    """
    before = [part for part, measured in _parts(old) if not measured]
    kept = [
        part if measured else next((earlier for earlier in before if alike(earlier, part)), part)
        for part, measured in _parts(new)
    ]
    return "\n\n".join(kept)


def timed(text: str) -> tuple[str, ...]:
    r"""The tables of a page that depend on the machine.

    >>> timed(f"# One\n\n{MEASURED}\n\n| n |\n|---|\n| 3 ms |\n\nEnd")
    ('| n |\n|---|\n| 3 ms |',)
    """
    return tuple(part for part, measured in _parts(text) if measured)


def with_times(text: str, times: Iterable[str]) -> str:
    """A page with other tables in place of those that depend on the machine."""
    others = iter(times)
    return "\n\n".join(next(others) if measured else part for part, measured in _parts(text))


def same_labels(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two lists of tables have the same heads and first columns."""
    return list(map(_labels, some)) == list(map(_labels, others))


def _parts(text: str) -> list[tuple[str, bool]]:
    """Paragraphs and tables, and whether they depend on the machine."""
    parts = text.split("\n\n")
    return [(part, before == MEASURED) for before, part in zip(["", *parts], parts, strict=False)]


def _labels(table: str) -> list[str]:
    """The head of a table, and the first cell of each row."""
    lines = table.split("\n")
    return [lines[0], *(line.split("|")[1] for line in lines[1:] if line.startswith("|"))]
