"""`&`, `|` and `~`: they keep the structure of their parts wherever it can be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch

from regard.patterns.arguments import whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.compound import Compound
from regard.patterns.full import Full
from regard.patterns.grid import Grid
from regard.patterns.ranges import Segments, common, covers, outside, union
from regard.patterns.reach import Reach


@dataclass(frozen=True, eq=False)
class Many(Compound):
    """Patterns joined by one sign; their order and repetitions carry no meaning."""

    parts: tuple[Pattern, ...]
    sign = ""

    def made_of(self) -> tuple[Pattern, ...]:
        return self.parts

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        join = both if isinstance(self, Both) else either
        return join(*(change(part) for part in self.parts))

    def structure(self) -> Pattern:
        simpler = [part.structure() for part in self.parts]
        same = all(one is other for one, other in zip(simpler, self.parts, strict=True))
        return self if same else (both if isinstance(self, Both) else either)(*simpler)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        parts = [part.on_lattice(stride, residue) for part in self.parts]
        if any(part is None for part in parts):
            return None
        return (both if isinstance(self, Both) else either)(*(part for part in parts if part is not None))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash((type(self).__name__, frozenset(self.parts)))

    def __str__(self) -> str:
        words = [f"({part!s})" if isinstance(part, Many) else str(part) for part in self.parts]
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

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        found = [part.segments(first, last, k_len) for part in self.parts]
        return Segments(reduce(common, (one.full for one in found)), reduce(common, (one.some for one in found)))

    def reach(self, layers: int = 1) -> Reach:
        return reduce(Reach.nearer, (part.reach(layers) for part in self.parts))

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

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        found = [part.segments(first, last, k_len) for part in self.parts]
        return Segments(
            union(keys for one in found for keys in one.full), union(keys for one in found for keys in one.some)
        )

    def reach(self, layers: int = 1) -> Reach:
        return reduce(Reach.farther, (part.reach() for part in self.parts)).stacked(whole("layers", layers, 1))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return any(part.sees_all(first, last, keys) for part in self.parts)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        shown = [part.visible_keys(grid) for part in self.parts]
        return reduce(lambda a, b: None if a is None or b is None else a | b, shown)


@dataclass(frozen=True)
class Not(Compound):
    """A pair is allowed where the part does not allow it.

    >>> from regard.patterns import Causal
    >>> (~Causal()).dense(2, 2).int().tolist()
    [[0, 1], [0, 0]]
    """

    part: Pattern

    def made_of(self) -> tuple[Pattern, ...]:
        return (self.part,)

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        return negate(change(self.part))

    def structure(self) -> Pattern:
        simpler = self.part.structure()
        return self if simpler is self.part else negate(simpler)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        part = self.part.on_lattice(stride, residue)
        return None if part is None else negate(part)

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        inner = self.part.segments(first, last, k_len)
        return Segments(outside(inner.some, k_len), outside(inner.full, k_len))

    def keys(self, first: int, last: int, k_len: int) -> range:
        seen = self.segments(first, last, k_len).some
        return range(seen[0].start, seen[-1].stop) if seen else range(0)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return not self.by_length and covers(self.segments(first, last, max(0, keys.stop)).full, keys)

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

    def __str__(self) -> str:
        return f"~({self.part!s})" if isinstance(self.part, Many) else f"~{self.part!s}"


NOTHING = Not(Full())


def both(*patterns: Pattern) -> Pattern:
    """`&`, flattened: full is neutral, nothing swallows everything, a repeated part counts once."""
    parts = [part for part in _flat(Both, patterns) if not isinstance(part, Full)]
    return NOTHING if NOTHING in parts else _joined(Both, parts or [Full()])


def either(*patterns: Pattern) -> Pattern:
    """`|`, flattened: nothing is neutral, full swallows everything, a repeated part counts once."""
    parts = [part for part in _flat(Either, patterns) if part != NOTHING]
    return Full() if Full() in parts else _joined(Either, parts or [NOTHING])


def negate(pattern: Pattern) -> Pattern:
    """`~`; twice is not at all."""
    return pattern.part if isinstance(pattern, Not) else Not(pattern)


def _flat(kind: type[Many], patterns: tuple[Pattern, ...]) -> list[Pattern]:
    flat = (part for one in patterns for part in (one.parts if isinstance(one, kind) else (one,)))
    return list(dict.fromkeys(flat))


def _joined(kind: type[Many], parts: list[Pattern]) -> Pattern:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))
