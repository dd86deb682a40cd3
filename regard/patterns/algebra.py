"""Full, `&`, `|` and `~`, and the canonical form of what they join."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import reduce

import torch

from regard.patterns.band import EVERY_PAIR, Band, Reach
from regard.patterns.base import AnyOf, Compound, Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Segments, common, outside, union


@dataclass(frozen=True)
class Full(Pattern):
    """Every query may look at every key.

    >>> Full().count(3, 4), str(Full())
    (12, 'full')
    """

    query_free = True
    compares_positions = False

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        q_pos, k_pos = torch.broadcast_tensors(q_pos, k_pos)
        return torch.ones_like(k_pos, dtype=torch.bool)

    def form(self) -> Band:
        return Band()


@dataclass(frozen=True, eq=False)
class Many(Compound, enrol=False):
    """Patterns joined by one sign; their order and repetitions do not matter."""

    parts: tuple[Pattern, ...]
    sign = ""

    def made_of(self) -> tuple[Pattern, ...]:
        return self.parts

    def joined(self, parts: Iterable[Pattern]) -> Pattern:
        """Other parts joined by the same sign."""
        return both(*parts) if isinstance(self, Both) else either(*parts)

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        return self.joined(change(part) for part in self.parts)

    def form(self) -> Pattern | None:
        simpler = [part.structure() for part in self.parts]
        same = all(one is other for one, other in zip(simpler, self.parts, strict=True))
        return None if same else self.joined(simpler)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        parts = [part.on_lattice(stride, residue) for part in self.parts]
        known = [part for part in parts if part is not None]
        return self.joined(known) if len(known) == len(parts) else None

    def without_numbers(self) -> Hashable | None:
        if not self.varies_by_row:
            return super().without_numbers()
        parts = [part.without_numbers() for part in self.parts]
        return None if None in parts else (self.sign, *parts)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash((type(self).__name__, frozenset(self.parts)))

    def __str__(self) -> str:
        words = [f"({part!s})" if isinstance(part, Many) else str(part) for part in self.parts]
        return f" {self.sign} ".join(words)


class Both(Many, enrol=False):
    """A pair is allowed where every part allows it.

    >>> from regard.patterns import Causal, KeySpan
    >>> str(Causal() & KeySpan(0, 5))
    'causal & key_span(0, 5)'
    """

    sign = "&"

    @property
    def factors(self) -> tuple[Pattern, ...]:
        return self.parts

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return reduce(torch.logical_and, (part._truth(q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_and, (part.evaluate(grid) for part in self.parts))

    def band(self) -> Band | None:
        bands = [part.band() for part in self.parts]
        return reduce(
            lambda one, other: None if one is None or other is None else one & other, bands
        )

    def key_range(self, first: int, last: int, k_len: int) -> range:
        ranges = [part.key_range(first, last, k_len) for part in self.parts]
        low = max(keys.start for keys in ranges)
        return range(low, max(low, min(keys.stop for keys in ranges)))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        parts = [part.segments(first, last, k_len) for part in self.parts]
        return Segments(
            reduce(common, (one.full for one in parts)), reduce(common, (one.some for one in parts))
        )

    def kept_keys(self) -> tuple[int, int] | None:
        return min(
            (kept for part in self.parts if (kept := part.kept_keys()) is not None),
            key=sum,
            default=None,
        )

    def least_pairs(self, first: int, q_len: int, k_len: int, within: Band = EVERY_PAIR) -> int:
        band, rest = self._band_and_rest
        if len(rest) > 1:
            return 0
        return (rest[0] if rest else Full()).least_pairs(first, q_len, k_len, within & band)

    @property
    def _band_and_rest(self) -> tuple[Band, list[Pattern]]:
        """The band of the parts that are bands, and the other parts."""
        bands = [band for part in self.parts if (band := part.band()) is not None]
        return reduce(Band.__and__, bands, EVERY_PAIR), [
            part for part in self.parts if part.band() is None
        ]

    def reach(self, layers: int = 1) -> Reach:
        return reduce(Reach.nearer, (part.reach(layers) for part in self.parts))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return all(part.sees_all(first, last, keys) for part in self.parts)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        """Parts that are the same for every query only remove keys, so they are not evaluated by pairs."""
        band, rest = self._band_and_rest
        if len(rest) == 1 and (visible := rest[0].visible_within(band, grid)) is not None:
            return visible
        free = [part for part in self.parts if part.query_free]
        bound = [part for part in self.parts if not part.query_free]
        if self.band() is not None or not free or not bound or not len(grid.rows):
            return super().visible_keys(grid)
        visible = [part.visible_keys(grid) for part in (reduce(both, bound), *free)]
        return reduce(lambda a, b: b if a is None else a if b is None else a & b, visible)


class Either(AnyOf, Many, enrol=False):
    """A pair is allowed where at least one part allows it.

    >>> from regard.patterns import Causal, KeySpan
    >>> (Causal() | KeySpan(0, 2)).dense(1, 3, q_start=0).int().tolist()
    [[1, 1, 0]]
    """

    sign = "|"

    @property
    def alternatives(self) -> tuple[Pattern, ...]:
        return self.parts

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return reduce(torch.logical_or, (part._truth(q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_or, (part.evaluate(grid) for part in self.parts))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        parts = [part.segments(first, last, k_len) for part in self.parts]
        return Segments(
            union(keys for one in parts for keys in one.full),
            union(keys for one in parts for keys in one.some),
        )

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return any(part.sees_all(first, last, keys) for part in self.parts)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        visible = [part.visible_keys(grid) for part in self.parts]
        return reduce(lambda a, b: None if a is None or b is None else a | b, visible)


@dataclass(frozen=True)
class Not(Compound, enrol=False):
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

    def misplaced(self, first: int, last: int) -> Pattern | None:
        return Pattern.misplaced(self, first, last)

    def form(self) -> Pattern | None:
        simpler = self.part.structure()
        return None if simpler is self.part else negate(simpler)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        part = self.part.on_lattice(stride, residue)
        return None if part is None else negate(part)

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        inner = self.part.segments(first, last, k_len)
        return Segments(outside(inner.some, k_len), outside(inner.full, k_len))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return ~self.part._truth(q_pos, k_pos)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return ~self.part.evaluate(grid)

    def band(self) -> Band | None:
        """The complement of a half-open band is a band; of a window or a span with two ends it is not."""
        inner = self.part.band()
        sides = inner.outside() if inner is not None else []
        return sides[0] if len(sides) == 1 else None

    def __str__(self) -> str:
        return f"~({self.part!s})" if isinstance(self.part, Many) else f"~{self.part!s}"


NOTHING = Not(Full())


def both(*patterns: Pattern) -> Pattern:
    """`&`, flattened: full is neutral, one part that allows nothing decides, a repeated part counts once."""
    parts = [part for part in _flat(Both, patterns) if not isinstance(part, Full)]
    return NOTHING if NOTHING in parts else _joined(Both, parts or [Full()])


def either(*patterns: Pattern) -> Pattern:
    """`|`, flattened: a part that allows nothing is neutral, full decides, a repeated part counts once."""
    parts = [part for part in _flat(Either, patterns) if part != NOTHING]
    return Full() if Full() in parts else _joined(Either, parts or [NOTHING])


def negate(pattern: Pattern) -> Pattern:
    """`~`; twice gives the pattern back."""
    return pattern.part if isinstance(pattern, Not) else Not(pattern)


def _flat(kind: type[Many], patterns: Iterable[Pattern]) -> list[Pattern]:
    flat = [part for one in patterns for part in (one.parts if isinstance(one, kind) else (one,))]
    if (
        torch.compiler.is_compiling()
    ):  # a hash would tie the graph to one pattern of those that hold tensors
        return [
            part for at, part in enumerate(flat) if not any(part is other for other in flat[:at])
        ]
    return list(dict.fromkeys(flat))


def _joined(kind: type[Many], parts: list[Pattern]) -> Pattern:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def canonical(pattern: Pattern) -> Pattern:
    """The same form for all equivalent ways to write a pattern, so that equal patterns share plans.

    Negations move to the leaves, bands joined by & become one band, a part that another part implies falls away, and
    the parts stand in the order of their text. Equal forms mean equal patterns; not the other way round.
    """
    if isinstance(pattern, Both):
        return _canonical_both([canonical(part) for part in pattern.parts])
    if isinstance(pattern, Either):
        return _canonical_either([canonical(part) for part in pattern.parts])
    if isinstance(pattern, Not) and isinstance(pattern.part, Many):
        inward = [canonical(negate(part)) for part in pattern.part.parts]
        return (
            _canonical_either(inward) if isinstance(pattern.part, Both) else _canonical_both(inward)
        )
    band = pattern.band()
    return pattern if band is None or pattern == NOTHING else _as_pattern(band)


def _canonical_both(parts: list[Pattern]) -> Pattern:
    parts = _flat(Both, parts)
    while True:
        if NOTHING in parts:
            return NOTHING
        bands = [band for part in parts if (band := part.band()) is not None]
        rest = [part for part in parts if part.band() is None]
        cut = reduce(Band.__and__, bands, Band())
        narrower = [left for part in rest if (left := _left_of(part, cut)) != Full()]
        parts = _flat(Both, [_as_pattern(cut), *narrower])
        if narrower == rest:
            break
    return both(*_ordered(_unabsorbed(Either, parts)))


def _left_of(part: Pattern, cut: Band) -> Pattern:
    """What a part still restricts inside a band: alternatives that the band excludes fall away."""
    inner = part.part.band() if isinstance(part, Not) else None
    if inner is None and not isinstance(part, Either):
        return part
    options = (
        part.parts
        if isinstance(part, Either)
        else [_as_pattern(half) for half in inner.outside()]
        if inner
        else []
    )
    live = []
    for option in options:
        band = option.band()
        if band is not None and cut.within(band):
            return Full()
        if band is None or not (cut & band).is_empty:
            live.append(option)
    if len(live) == len(options) or (len(live) > 1 and isinstance(part, Not)):
        return part
    return _canonical_either(live) if live else NOTHING


def _canonical_either(parts: list[Pattern]) -> Pattern:
    parts = _flat(Either, parts)
    if Full() in parts:
        return Full()
    bands = {part: band for part in parts if (band := part.band()) is not None}
    distinct = set(bands.values())
    inside = {
        band
        for band in distinct
        if any(band.within(other) and not other.within(band) for other in distinct - {band})
    }
    return either(
        *_ordered([part for part in _unabsorbed(Both, parts) if bands.get(part) not in inside])
    )


def _unabsorbed(kind: type[Many], parts: list[Pattern]) -> list[Pattern]:
    """Without what another part implies: A | (A & B) is A, and A & (A | B) is A."""
    known = set(parts)
    return [
        part for part in parts if not (isinstance(part, kind) and not known.isdisjoint(part.parts))
    ]


def _ordered(parts: list[Pattern]) -> list[Pattern]:
    """In the order of their text; those with a tensor or a function print alike and follow their serial."""
    return sorted(parts, key=lambda part: (str(part), getattr(part, "serial", 0)))


def _as_pattern(band: Band) -> Pattern:
    return Pattern.machinery.from_band(band)
