"""Mask functions that hold numbers only are read once: while decoding, a model composes the same one for each token."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from regard.patterns import Pattern

KEPT = 256
_patterns: dict[Any, Pattern] = {}


def read_once(function: Any, read: Callable[[], Pattern]) -> Pattern:
    """The canonical pattern of a mask function; functions of equal code and numbers share it."""
    name = _numbers_of(function)
    pattern = None if name is None else _patterns.get(name)
    if pattern is None:
        pattern = read().canonical()
        if name is not None and len(_patterns) < KEPT:
            _patterns[name] = pattern
    return pattern


@lru_cache(KEPT)
def joined(pattern: Pattern, live: Pattern) -> Pattern:
    """Both patterns in the canonical form; both are values."""
    return (pattern & live).canonical()


def _numbers_of(function: Any) -> tuple[Any, ...] | None:
    """The code of a function and the numbers and functions that it holds; None if it holds a tensor."""
    held: list[Any] = [function.__code__]
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        for one in value if isinstance(value, tuple) else (value,):
            name = one if isinstance(one, int) else _numbers_of(one) if hasattr(one, "__code__") else None
            if name is None:
                return None
            held.append(name)
    return tuple(held)
