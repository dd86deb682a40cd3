"""When is a page stale? Not where a time differs, nor where another processor rounds a last digit otherwise."""

from __future__ import annotations

import re

from regard.lessons.markdown import MEASURED

DECIMAL = re.compile(r"\d+\.\d+")


def alike(one: str, other: str) -> bool:
    """Do two pages say the same, but for times and the last digit of decimals?

    >>> alike("3 of 4: 0.125", "3 of 4: 0.126"), alike("3 of 4: 0.125", "3 of 4: 0.135"), alike("3 of 4", "2 of 4")
    (True, False, False)
    """
    one, other = stable(one), stable(other)
    if DECIMAL.sub("#", one) != DECIMAL.sub("#", other):
        return False
    return all(map(within_one, DECIMAL.findall(one), DECIMAL.findall(other)))


def within_one(one: str, other: str) -> bool:
    """Do two decimals, as printed, have as many digits and differ by at most one in the last?"""
    digits = len(one.split(".")[1])
    return digits == len(other.split(".")[1]) and abs(float(one) - float(other)) < 1.5 * 10**-digits


def stable(text: str) -> str:
    """A page without the rows of tables that depend on the machine.

    >>> "3 ms" in stable(f"### Time\\n\\n{MEASURED}\\n\\n| n |\\n|---|\\n| 3 ms |\\n\\nEnd")
    False
    """
    parts = text.split("\n\n")
    return "\n\n".join(part for before, part in zip(["", *parts], parts, strict=False) if before != MEASURED)
