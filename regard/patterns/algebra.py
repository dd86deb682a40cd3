"""`&`, `|` and `~`: they keep the structure of their parts wherever it can be kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch

from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.full import Full
from regard.patterns.grid import Grid


@dataclass(frozen=True, eq=False)
class Many(Pattern):
    """Patterns joined by one sign; their order and repetitions carry no meaning."""

    parts: tuple[Pattern, ...]
    sign = ""

    @property
    def query_free(self) -> bool:  # type: ignore[override]
        return all(part.query_free for part in self.parts)

    @property
    def compares_positions(self) -> bool:  # type: ignore[override]
        return any(part.compares_positions for part in self.parts)

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return all(part.by_value for part in self.parts)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for part in self.parts:
            part.check(batch, heads, q_len, k_len)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash((type(self).__name__, frozenset(self.parts)))

    def __str__(self) -> str:
        words = [f"({part})" if isinstance(part, Many) else str(part) for part in self.parts]
        return f" {self.sign} ".join(words)


class Both(Many):
    """A pair is allowed where every part allows it.

    >>> from regard.patterns import Causal, KeySpan
    >>> str(Causal() & KeySpan(0, 5))
    'causal & key_span(0, 5)'
    """

    sign = "&"

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return reduce(torch.logical_and, (part.allows(q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_and, (part.evaluate(grid) for part in self.parts))

    def band(self) -> Band | None:
        bands = [part.band() for part in self.parts]
        return reduce(lambda one, other: None if one is None or other is None else one & other, bands)

    def keys(self, first: int, last: int, k_len: int) -> range:
        ranges = [part.keys(first, last, k_len) for part in self.parts]
        low = max(keys.start for keys in ranges)
        return range(low, max(low, min(keys.stop for keys in ranges)))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return all(part.sees_all(first, last, keys) for part in self.parts)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        """Parts that ask nothing of the query only cut what the other parts show, so they need no pairs."""
        free = [part for part in self.parts if part.query_free]
        bound = [part for part in self.parts if not part.query_free]
        if self.band() is not None or not free or not bound or not len(grid.rows):
            return super().visible_keys(grid)
        shown = [part.visible_keys(grid) for part in (reduce(both, bound), *free)]
        return reduce(lambda a, b: b if a is None else a if b is None else a & b, shown)


class Either(Many):
    """A pair is allowed where at least one part allows it.

    >>> from regard.patterns import Causal, KeySpan
    >>> (Causal() | KeySpan(0, 2)).dense(1, 3, q_start=0).int().tolist()
    [[1, 1, 0]]
    """

    sign = "|"

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return reduce(torch.logical_or, (part.allows(q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_or, (part.evaluate(grid) for part in self.parts))

    def keys(self, first: int, last: int, k_len: int) -> range:
        ranges = [keys for part in self.parts if (keys := part.keys(first, last, k_len))]
        if not ranges:
            return range(0)
        return range(min(keys.start for keys in ranges), max(keys.stop for keys in ranges))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return any(part.sees_all(first, last, keys) for part in self.parts)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        shown = [part.visible_keys(grid) for part in self.parts]
        return reduce(lambda a, b: None if a is None or b is None else a | b, shown)


@dataclass(frozen=True)
class Not(Pattern):
    """A pair is allowed where the part does not allow it.

    >>> from regard.patterns import Causal
    >>> (~Causal()).dense(2, 2).int().tolist()
    [[0, 1], [0, 0]]
    """

    part: Pattern

    @property
    def query_free(self) -> bool:  # type: ignore[override]
        return self.part.query_free

    @property
    def compares_positions(self) -> bool:  # type: ignore[override]
        return self.part.compares_positions

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return self.part.by_value

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return ~self.part.allows(q_pos, k_pos)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return ~self.part.evaluate(grid)

    def band(self) -> Band | None:
        """The complement of a half-open band is a band; of a window or a span with two ends it is not."""
        inner = self.part.band()
        if inner is None:
            return None
        ends = [name for name in ("left", "right", "start", "stop") if getattr(inner, name) is not None]
        if ends == ["right"]:
            assert inner.right is not None
            return Band(left=-inner.right - 1)
        if ends == ["left"]:
            assert inner.left is not None
            return Band(right=-inner.left - 1)
        if ends == ["start"]:
            return Band(stop=inner.start)
        if ends == ["stop"]:
            return Band(start=inner.stop)
        return None

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        self.part.check(batch, heads, q_len, k_len)

    def __str__(self) -> str:
        return f"~({self.part})" if isinstance(self.part, Many) else f"~{self.part}"


def both(*patterns: Pattern) -> Pattern:
    """`&`, flattened: full is neutral, a repeated part counts once."""
    parts = [part for part in _flat(Both, patterns) if part != Full()]
    return _joined(Both, parts or [Full()])


def either(*patterns: Pattern) -> Pattern:
    """`|`, flattened: full swallows everything, a repeated part counts once."""
    parts = _flat(Either, patterns)
    return Full() if Full() in parts else _joined(Either, parts)


def negate(pattern: Pattern) -> Pattern:
    """`~`; twice is not at all."""
    return pattern.part if isinstance(pattern, Not) else Not(pattern)


def _flat(kind: type[Many], patterns: tuple[Pattern, ...]) -> list[Pattern]:
    parts: list[Pattern] = []
    for pattern in patterns:
        for part in pattern.parts if isinstance(pattern, kind) else (pattern,):
            if part not in parts:
                parts.append(part)
    return parts


def _joined(kind: type[Many], parts: list[Pattern]) -> Pattern:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))
