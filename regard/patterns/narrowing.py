"""What is left to ask of a pattern inside one block of pairs, and which blocks have the same answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from regard.patterns.algebra import NOTHING, Full, Many, Not
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import covers, meets


def narrowed(pattern: Pattern, first: int, last: int, keys: range, k_len: int) -> Pattern:
    """A pattern that answers alike for the queries at first..last and `keys`, without the parts that decide nothing.

    >>> from regard.patterns import Causal, KeySpan, SlidingWindow
    >>> print(narrowed(SlidingWindow(8) | (Causal() & KeySpan(0, 10)), 50, 60, range(45, 65), 99))
    sliding_window(8)
    """
    seen = pattern.segments(first, last, k_len)
    if covers(seen.full, keys):
        return Full()
    if not meets(seen.some, keys):
        return NOTHING
    simpler = pattern.structure()
    if simpler is not pattern:
        return narrowed(simpler, first, last, keys, k_len)
    if isinstance(pattern, Many | Not):
        return pattern.mapped(lambda part: narrowed(part, first, last, keys, k_len))
    return pattern


@dataclass
class Blocks:
    """Answers for blocks of pairs, each found once: blocks that a pattern cannot tell apart share theirs."""

    pattern: Pattern
    grid: Grid
    known: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple[range, range], Hashable] = field(default_factory=dict)

    def identity(self, rows: range, keys: range) -> Hashable:
        """Equal for blocks with equal answers; None where nothing is known to be equal."""
        assert isinstance(self.grid.q_start, int)
        first = self.grid.q_start + rows.start
        left = narrowed(self.pattern, first, first + len(rows) - 1, keys, self.grid.k_len)
        if not left.by_value or left.period is None:
            return None
        away = keys.start - first if left.key_period is None else (keys.start - first) % left.key_period
        return left, len(rows), away, len(keys), first % left.period

    def allowed(self, rows: range, keys: range) -> torch.Tensor:
        """Which pairs are allowed, (rows, keys)."""
        place = rows, keys
        name = self.names[place] if place in self.names else self.names.setdefault(place, self.identity(*place))
        if name is None:
            return self.pattern.evaluate(self.grid.block(rows, keys))
        if name not in self.known:
            self.known[name] = self.pattern.evaluate(self.grid.block(rows, keys))
        return self.known[name]
