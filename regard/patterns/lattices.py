"""Splits a pattern into parts that lie on lattices of positions, such as every 64th, and the rest.

On a lattice a strided pattern is a simple one, so counts and backends treat it there, residue by residue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from regard.patterns.algebra import NOTHING, Full, Many, Not, both, negate
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.strided import Lattice

# Work multiplies: the residues of each stride are split by those of every other stride.
MOST_STRIDES = 4


def simplified(pattern: Pattern) -> Pattern:
    """The pattern in terms of its simplest parts.

    >>> from regard.patterns import parse
    >>> print(simplified(parse("causal & strided(4)")))
    causal & (lattice(4) | sliding_window(6))
    """
    simpler = pattern.structure()
    while simpler is not pattern:
        pattern = simpler
        simpler = simpler.structure()
    return pattern.canonical()


def off_lattices(pattern: Pattern) -> tuple[Pattern, list[tuple[int, Pattern]]]:
    """Splits a pattern into disjoint patterns: one without lattices, and one for each stride that lies on its lattice.

    Lattices that remove pairs, or on which the pattern has no known form, stay in the first pattern. All of them do if
    there are more than MOST_STRIDES strides.
    """
    strides = _strides(pattern)
    if len(strides) > MOST_STRIDES:
        return pattern, []
    on: list[tuple[int, Pattern]] = []
    for stride in strides:
        off = _replaced(pattern, Lattice(stride), NOTHING).canonical()
        on_this = both(_replaced(pattern, Lattice(stride), Full()), negate(off))
        if on_this.on_lattice(stride, 0) is not None:
            on.append((stride, on_this))
            pattern = off
    return pattern, on


def _replaced(pattern: Pattern, leaf: Pattern, by: Pattern) -> Pattern:
    """The pattern with one of its leaves replaced, wherever it stands."""
    if isinstance(pattern, Many | Not):
        return pattern.mapped(lambda part: _replaced(part, leaf, by))
    return by if pattern == leaf else pattern


def _strides(pattern: Pattern) -> list[int]:
    """The strides of the lattices that add pairs and never remove any."""
    adding: set[int] = set()
    removing: set[int] = set()

    def collect(part: Pattern, negated: bool) -> None:
        if isinstance(part, Many):
            for inner in part.parts:
                collect(inner, negated)
        elif isinstance(part, Not):
            collect(part.part, not negated)
        elif isinstance(part, Lattice) and part.stride > 1:
            strides = removing if negated else adding
            strides.add(part.stride)

    collect(pattern, negated=False)
    return sorted(adding - removing)


def alike_residues(pattern: Pattern, stride: int, grid: Grid) -> Iterable[range]:
    """The first rows of the residues of a stride, in ranges of residues with equal queries, keys and pattern."""
    rows = min(stride, grid.q_len)
    assert isinstance(grid.q_start, int)
    ends = pattern.lattice_ends()
    if ends is None:
        return (range(row, row + 1) for row in range(rows))
    # At the residues of these positions the number of positions on the lattice changes.
    edges = {0, grid.keys.start, grid.keys.stop, *ends}
    turns = {(position - grid.q_start) % stride for position in edges}
    turns.add(grid.q_len % stride)
    cuts = sorted({0, rows, *(turn for turn in turns if turn < rows)})
    return [range(first, end) for first, end in pairwise(cuts)]


@dataclass(frozen=True)
class Residues:
    """Neighbouring residues with one pattern on their positions, counted by n; the rest of a pattern has a stride of 1.

    Residue r of `count` has row `first + r` and every `stride`-th row after it, and the keys from `first_key + r` on.
    Its first query has position `start` among its positions, its first key `start_key`.
    """

    pattern: Pattern
    stride: int
    count: int
    first: int
    size: int
    start: int
    first_key: int
    width: int
    start_key: int

    def goes_on(self, after: Residues) -> bool:
        """Whether a residue follows this one with an equal pattern and equal lengths."""
        moved_back = replace(
            after,
            first=after.first - self.count,
            first_key=after.first_key - self.count,
            count=self.count,
        )
        return moved_back == self


def residue_of(pattern: Pattern, stride: int, grid: Grid, row: int) -> Residues:
    """The residue whose first row is `row`, with all its rows and keys."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    inner = pattern.on_lattice(stride, residue)
    assert inner is not None
    first_key = (residue - grid.keys.start) % stride
    return Residues(
        inner.canonical(),
        stride,
        count=1,
        first=row,
        size=-(-(grid.q_len - row) // stride),
        start=(grid.q_start + row - residue) // stride,
        first_key=first_key,
        width=-(-(len(grid.keys) - first_key) // stride),
        start_key=(grid.keys.start + first_key - residue) // stride,
    )
