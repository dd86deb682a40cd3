"""Which keys a causal query may look at where a cache drops keys: the first ones and the last ones.

A ring keeps the first keys of a text and its last ones. A pattern can go on with it if it allows no other key, and if
the keys that are left are allowed as before.
"""

from __future__ import annotations

import torch

from regard.patterns.algebra import Both, Not
from regard.patterns.bands import KeySpan
from regard.patterns.base import AnyOf, Compound, Pattern


def kept_keys(pattern: Pattern) -> tuple[int, int] | None:
    """How many first keys, and how many last ones with the query's own, a causal query may look at; None for all.

    >>> from regard.patterns import Causal, CausalWindow, Prefix
    >>> kept_keys(CausalWindow(64) | Prefix(4)), kept_keys(Causal())
    ((4, 64), None)
    """
    if isinstance(pattern, Both):
        return _kept_by_all(pattern)
    if isinstance(pattern, AnyOf):
        return _kept_by_any(pattern)
    if isinstance(pattern, KeySpan) and isinstance(pattern.stop, torch.Tensor):
        return int(pattern.stop.max()), 1
    band = None if pattern.varies_by_row else pattern.band()
    if band is None:
        return None
    if band.left is not None:
        return 0, max(0, band.left) + 1
    return None if band.stop is None else (max(0, band.stop), 1)


def _kept_by_all(pattern: Both) -> tuple[int, int] | None:
    """Each part alone limits the keys, so the fewest count."""
    limits = [kept_keys(part) for part in pattern.parts]
    return min(filter(None, limits), key=sum, default=None)


def _kept_by_any(pattern: AnyOf) -> tuple[int, int] | None:
    most_first = 0
    most_last = 0
    for part in pattern.made_of():
        limit = kept_keys(part)
        if limit is None:  # the part needs all keys
            return None
        first, last = limit
        most_first = max(most_first, first)
        most_last = max(most_last, last)
    return most_first, most_last


def misplaced(pattern: Pattern, first: int, last: int) -> Pattern | None:
    """A part that may allow other pairs once the keys between the first and the last ones are dropped, or None."""
    if isinstance(pattern, Compound) and not isinstance(pattern, Not):
        parts = (misplaced(part, first, last) for part in pattern.made_of())
        return next((part for part in parts if part is not None), None)
    if isinstance(pattern, KeySpan):
        ends = [*_numbers_of(pattern.start), *_numbers_of(pattern.stop)]
        return None if all(end <= first for end in ends) else pattern
    band = pattern.band()
    if band is None:
        return pattern
    span_is_kept = max(band.start or 0, band.stop or 0) <= first
    reaches_own_key = band.right is None or band.right >= 0
    window_is_kept = band.left is None or band.left < last
    if span_is_kept and reaches_own_key and window_is_kept:
        return None
    return pattern


def _numbers_of(end: object) -> list[int]:
    if isinstance(end, torch.Tensor):
        return end.tolist()
    return [end] if isinstance(end, int) else []
