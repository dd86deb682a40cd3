"""Patterns counted from another position than the first key: behind left padding, or in a cache that was cut."""

from __future__ import annotations

from collections.abc import Sequence

from regard.patterns import Full, GlobalTokens, KeySpan, Pattern, Prefix, SameBlock
from regard.patterns.compound import Compound

__all__ = ["Origin", "counted_from"]

Origin = int | tuple[int, ...]  # the position that counts as 0, of all batch rows or of each


def counted_from(pattern: Pattern, origin: Origin) -> Pattern | None:
    """The pattern that allows the pair (i, j) where `pattern` allows (i - origin, j - origin).

    Keys before the origin are not looked at by a prefix or by global tokens; those that a pattern allows by distance
    alone stay allowed, and are hidden by padding.

    Returns:
        The moved pattern, or None where it cannot be written: by batch row this is known for patterns of distances,
        prefixes, spans of keys, and what `& | ~` make of them.

    >>> from regard.patterns import CausalWindow
    >>> print(counted_from(CausalWindow(4) | Prefix(2), 3))
    causal_window(4) | key_span(3, 5)
    >>> print(counted_from(CausalWindow(4) | Prefix(2), (0, 3)))
    causal_window(4) | key_span((0, 3), (2, 5))
    """
    origins = (origin,) if isinstance(origin, int) else origin
    if not any(origins) or (pattern.period is not None and not any(one % pattern.period for one in origins)):
        return pattern
    if isinstance(pattern, Compound):
        return _of_parts(pattern, origin)
    if isinstance(pattern, Prefix):
        return _span(0, pattern.length, origins)
    if isinstance(pattern, KeySpan) and isinstance(pattern.start, int) and isinstance(pattern.stop, int | None):
        return _span(pattern.start, pattern.stop, origins)
    if len(set(origins)) > 1:
        return None
    if isinstance(pattern, GlobalTokens):
        assert isinstance(pattern.indices, tuple)
        kept = [index + origins[0] for index in pattern.indices if index + origins[0] >= 0]
        return GlobalTokens(kept) if kept else ~Full()
    if isinstance(pattern, SameBlock) and isinstance(pattern.offset, int):
        return SameBlock(pattern.size, pattern.offset + origins[0])
    simpler = pattern.structure()
    return None if simpler is pattern else counted_from(simpler, origin)


def _of_parts(pattern: Compound, origin: Origin) -> Pattern | None:
    parts = [moved for part in pattern.made_of() if (moved := counted_from(part, origin)) is not None]
    if len(parts) < len(pattern.made_of()):
        return None
    following = iter(parts)
    return pattern.mapped(lambda part: next(following))


def _span(start: int, stop: int | None, origins: Sequence[int]) -> Pattern:
    """Keys from start to stop, counted from the origin of each batch row."""
    first = [max(0, start + origin) for origin in origins]
    after = None if stop is None else [max(0, stop + origin) for origin in origins]
    if len(first) == 1:
        return KeySpan(first[0], None if after is None else after[0])
    return KeySpan(first, after)
