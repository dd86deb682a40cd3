"""Decides whether a generated page is stale; differences of the last digit do not count.

Numbers are compared as numbers, the text between them as text.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?e[-+]?\d+|[-−]?\d+\.\d+")  # 1.5, -0.25, 3.5e-17; whole numbers are text
TINY = 1e-12  # numbers below it are rounding errors of 0
CLOSE = 1e-4  # relative, and below 1 absolute: far above the rounding of float32, below what a picture shows


def alike(one: str, other: str) -> bool:
    """Whether two pages are the same, except for the last digit of numbers.

    >>> alike("3 of 4: 0.125", "3 of 4: 0.126"), alike("3 of 4: 0.125", "3 of 4: 0.135"), alike("3 of 4", "2 of 4")
    (True, False, False)
    >>> alike("off by 3.5e-17", "off by 1.1e-16"), alike("off by 3.5e-17", "off by 1.1e-06")
    (True, False)
    """
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


def settled(new: str, old: str) -> str:
    r"""A new page with the last digits of the old one, where nothing else of a paragraph or table changed.

    >>> settled("# Two\n\n0.126", "# One\n\n0.125")
    '# Two\n\n0.125'
    """
    before = old.split("\n\n")
    return "\n\n".join(next((one for one in before if alike(one, part)), part) for part in new.split("\n\n"))
