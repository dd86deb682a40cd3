"""One form for the many ways in which a pattern can be written, so that equal patterns plan equally.

Negations move to the leaves, bands that are cut by each other become one band, a part that another part implies
falls away, and the parts stand in the order of their text. Equal forms mean equal patterns; not the other way round.
"""

from __future__ import annotations

from functools import reduce

from regard.patterns.algebra import NOTHING, Both, Either, Many, Not, both, either, negate
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.full import Full


def canonical(pattern: Pattern) -> Pattern:
    """The form described above."""
    if isinstance(pattern, Both):
        return _both([canonical(part) for part in pattern.parts])
    if isinstance(pattern, Either):
        return _either([canonical(part) for part in pattern.parts])
    if isinstance(pattern, Not) and isinstance(pattern.part, Many):
        inward = [canonical(negate(part)) for part in pattern.part.parts]
        return _either(inward) if isinstance(pattern.part, Both) else _both(inward)
    band = pattern.band()
    return pattern if band is None or pattern == NOTHING else band.as_pattern()


def _both(parts: list[Pattern]) -> Pattern:
    parts = _flat(Both, parts)
    while True:
        if NOTHING in parts:
            return NOTHING
        bands = [band for part in parts if (band := part.band()) is not None]
        rest = [part for part in parts if part.band() is None]
        cut = reduce(Band.__and__, bands, Band())
        narrower = [left for part in rest if (left := _left_of(part, cut)) != Full()]
        parts = _flat(Both, [cut.as_pattern(), *narrower])
        if narrower == rest:
            break
    return both(*_ordered(_unabsorbed(Either, parts)))


def _left_of(part: Pattern, cut: Band) -> Pattern:
    """What a part still says inside a band: alternatives that the band excludes fall away."""
    inner = part.part.band() if isinstance(part, Not) else None
    if inner is None and not isinstance(part, Either):
        return part
    options = (
        part.parts if isinstance(part, Either) else [half.as_pattern() for half in inner.outside()] if inner else []
    )
    live = []
    for option in options:
        band = option.band()
        if band is not None and cut.within(band):
            return Full()
        if band is None or not (cut & band).shows_nobody:
            live.append(option)
    if len(live) == len(options) or (len(live) > 1 and isinstance(part, Not)):
        return part
    return _either(live) if live else NOTHING


def _either(parts: list[Pattern]) -> Pattern:
    parts = _flat(Either, parts)
    if Full() in parts:
        return Full()
    bands = {part: band for part in parts if (band := part.band()) is not None}
    distinct = set(bands.values())
    inside = {
        band for band in distinct if any(band.within(other) and not other.within(band) for other in distinct - {band})
    }
    return either(*_ordered([part for part in _unabsorbed(Both, parts) if bands.get(part) not in inside]))


def _unabsorbed(kind: type[Many], parts: list[Pattern]) -> list[Pattern]:
    """Without what another part implies: A | (A & B) is A, and A & (A | B) is A."""
    known = set(parts)
    return [part for part in parts if not (isinstance(part, kind) and not known.isdisjoint(part.parts))]


def _flat(kind: type[Many], parts: list[Pattern]) -> list[Pattern]:
    flat = (inner for part in parts for inner in (part.parts if isinstance(part, kind) else (part,)))
    return list(dict.fromkeys(flat))


def _ordered(parts: list[Pattern]) -> list[Pattern]:
    """By text, and those with a tensor or a function, which print alike, in the order of their serial."""
    return sorted(parts, key=lambda part: (str(part), getattr(part, "serial", 0)))
