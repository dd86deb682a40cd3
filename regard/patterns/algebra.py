"""Full, `&`, `|` and `~`, and the canonical form of what they join."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce

import torch

from regard.patterns.band import EVERY_PAIR, Band, Reach
from regard.patterns.base import AnyOf, Compound, Pattern, truth_of
from regard.patterns.grid import Grid
from regard.patterns.ranges import Segments, common, outside, union
from regard.patterns.row_keys import RowKeys


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
        unchanged = all(map(operator.is_, simpler, self.parts))
        return None if unchanged else self.joined(simpler)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        parts = [part.on_lattice(stride, residue) for part in self.parts]
        known = [part for part in parts if part is not None]
        return self.joined(known) if len(known) == len(parts) else None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash((type(self).__name__, frozenset(self.parts)))

    def __str__(self) -> str:
        return f" {self.sign} ".join(map(_as_operand, self.parts))


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

    @cached_property
    def row_keys(self) -> RowKeys | None:  # type: ignore[override]
        known = {part: part.row_keys for part in self.parts}
        others = [part for part, keys in known.items() if keys is None]
        if len(others) == len(known) or not all(part.by_value for part in others):
            return None
        structure: list[Hashable] = []
        joined = RowKeys(None)
        for part, keys in known.items():
            structure.append(part if keys is None else keys.structure)
            if keys is not None:
                joined = joined.joined(keys)
        for part in others:
            band = part.known_band
            if band is None:
                return None
            joined = joined.within(band)
        return joined._replace(structure=tuple(structure))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return reduce(torch.logical_and, (truth_of(part, q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_and, (part.evaluate(grid) for part in self.parts))

    def band(self) -> Band | None:
        common, others = band_and_rest(self.parts)
        return None if others else common

    def key_range(self, first: int, last: int, k_len: int) -> range:
        ranges = [part.key_range(first, last, k_len) for part in self.parts]
        low = max(keys.start for keys in ranges)
        return range(low, max(low, min(keys.stop for keys in ranges)))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        parts = [part.segments(first, last, k_len) for part in self.parts]
        full = parts[0].full
        some = parts[0].some
        for segments in parts[1:]:
            full = common(full, segments.full)
            some = common(some, segments.some)
        return Segments(full, some)

    def reach(self, layers: int = 1) -> Reach:
        return reduce(Reach.nearer, (part.reach(layers) for part in self.parts))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        for part in self.parts:
            if not part.sees_all(first, last, keys):
                return False
        return True


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
        return reduce(torch.logical_or, (truth_of(part, q_pos, k_pos) for part in self.parts))

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return reduce(torch.logical_or, (part.evaluate(grid) for part in self.parts))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        full: list[range] = []
        some: list[range] = []
        for part in self.parts:
            segments = part.segments(first, last, k_len)
            full += segments.full
            some += segments.some
        return Segments(union(full), union(some))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        for part in self.parts:
            if part.sees_all(first, last, keys):
                return True
        return False


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
        return ~truth_of(self.part, q_pos, k_pos)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return ~self.part.evaluate(grid)

    def band(self) -> Band | None:
        """The complement of a half-open band is a band; of a window or a span with two ends it is not."""
        inner = self.part.band()
        sides = inner.outside() if inner is not None else []
        return sides[0] if len(sides) == 1 else None

    def __str__(self) -> str:
        return f"~{_as_operand(self.part)}"


def _as_operand(pattern: Pattern) -> str:
    """The text of a pattern beside a sign: in parentheses if it has a sign of its own between parts."""
    return f"({pattern!s})" if isinstance(pattern, Many) else str(pattern)


NOTHING = Not(Full())


def both(*patterns: Pattern) -> Pattern:
    """`&`, flattened: full is neutral, one part that allows nothing decides, a repeated part counts once."""
    parts = [part for part in _flat(Both, patterns) if not isinstance(part, Full)]
    if NOTHING in parts:
        return NOTHING
    return _joined(Both, parts or [Full()])


def either(*patterns: Pattern) -> Pattern:
    """`|`, flattened: a part that allows nothing is neutral, full decides, a repeated part counts once."""
    parts = [part for part in _flat(Either, patterns) if part != NOTHING]
    if Full() in parts:
        return Full()
    return _joined(Either, parts or [NOTHING])


def negate(pattern: Pattern) -> Pattern:
    """`~`; twice gives the pattern back."""
    return pattern.part if isinstance(pattern, Not) else Not(pattern)


def band_and_rest(parts: Iterable[Pattern]) -> tuple[Band, list[Pattern]]:
    """The band of the parts that are bands, and the other parts."""
    common = EVERY_PAIR
    rest = []
    for part in parts:
        band = part.band()
        if band is None:
            rest.append(part)
        else:
            common = common & band
    return common, rest


def _flat(kind: type[Many], patterns: Iterable[Pattern]) -> list[Pattern]:
    """The parts of all patterns of one sign, each once."""
    flat: list[Pattern] = []
    for pattern in patterns:
        flat += pattern.parts if isinstance(pattern, kind) else [pattern]
    if not torch.compiler.is_compiling():
        return list(dict.fromkeys(flat))
    # A hash would tie the graph to one pattern of those that hold tensors.
    distinct: list[Pattern] = []
    for part in flat:
        if not any(part is earlier for earlier in distinct):
            distinct.append(part)
    return distinct


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
        negated = [canonical(negate(part)) for part in pattern.part.parts]
        # The negation of `&` is `|` of the negations, and the other way round.
        join = _canonical_either if isinstance(pattern.part, Both) else _canonical_both
        return join(negated)
    band = pattern.band()
    if band is None or pattern == NOTHING:
        return pattern
    return _as_pattern(band)


def _canonical_both(parts: list[Pattern]) -> Pattern:
    parts = _flat(Both, parts)
    while True:  # a part that was narrowed may be a band, which narrows the others further
        if NOTHING in parts:
            return NOTHING
        band, rest = band_and_rest(parts)
        narrower = [_narrowed(part, band) for part in rest]
        narrower = [part for part in narrower if part != Full()]
        parts = _flat(Both, [_as_pattern(band), *narrower])
        if narrower == rest:
            break
    return both(*_ordered(_unabsorbed(Either, parts)))


def _narrowed(part: Pattern, band: Band) -> Pattern:
    """What a part still restricts inside a band: options that the band excludes fall away, and one that holds all of
    the band leaves nothing to restrict.

    The options are the alternatives of an `|`, and the sides of a band that is negated.
    """
    if isinstance(part, Either):
        options = list(part.parts)
    else:
        negated = part.part.band() if isinstance(part, Not) else None
        if negated is None:
            return part
        options = [_as_pattern(side) for side in negated.outside()]

    remaining = []
    for option in options:
        allowed = option.band()
        if allowed is not None and band.within(allowed):
            return Full()
        if allowed is None or not (band & allowed).is_empty:
            remaining.append(option)
    # Two sides or more are written shorter as the negated band.
    if len(remaining) == len(options) or (len(remaining) > 1 and isinstance(part, Not)):
        return part
    return _canonical_either(remaining) if remaining else NOTHING


def _canonical_either(parts: list[Pattern]) -> Pattern:
    parts = _flat(Either, parts)
    if Full() in parts:
        return Full()
    bands = {}
    for part in parts:
        band = part.band()
        if band is not None:
            bands[part] = band
    distinct = set(bands.values())
    inside = {band for band in distinct if _is_inside_another(band, distinct)}
    outer = [part for part in _unabsorbed(Both, parts) if bands.get(part) not in inside]
    return either(*_ordered(outer))


def _is_inside_another(band: Band, bands: set[Band]) -> bool:
    return any(band.within(other) and not other.within(band) for other in bands)


def _unabsorbed(kind: type[Many], parts: list[Pattern]) -> list[Pattern]:
    """Without what another part implies: A | (A & B) is A, and A & (A | B) is A."""
    known = set(parts)
    absorbed = {part for part in parts if isinstance(part, kind) and known & set(part.parts)}
    return [part for part in parts if part not in absorbed]


def _ordered(parts: list[Pattern]) -> list[Pattern]:
    """In the order of their text; those with a tensor or a function print alike and follow their serial."""
    return sorted(parts, key=lambda part: (str(part), getattr(part, "serial", 0)))


def _as_pattern(band: Band) -> Pattern:
    return Pattern.operations.from_band(band)
