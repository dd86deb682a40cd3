"""Splits a pattern into leaves, and into parts on lattices and the rest; counts the pairs that it allows by both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from regard.patterns.algebra import NOTHING, Full, Many, Not, both, negate
from regard.patterns.base import MOST_LOOKS, Pattern
from regard.patterns.grid import CHUNK, Grid
from regard.patterns.ranges import size
from regard.patterns.row_blocks import ROWS, EvaluatedBlocks, RowBlock, in_row_blocks
from regard.patterns.strided import Lattice

LOOK = 13  # evaluating 2**LOOK pairs takes as long as looking at one row block
MOST_STRIDES = (
    4  # work multiplies: the residues of each stride are split by those of every other stride
)


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


def _replaced(pattern: Pattern, leaf: Pattern, by: Pattern) -> Pattern:
    """The pattern with one of its leaves replaced, wherever it stands."""
    if isinstance(pattern, Many | Not):
        return pattern.mapped(lambda part: _replaced(part, leaf, by))
    return by if pattern == leaf else pattern


def off_lattices(pattern: Pattern) -> tuple[Pattern, list[tuple[int, Pattern]]]:
    """Splits a pattern into disjoint patterns: one without lattices, and one for each stride that lies on its lattice.

    Lattices that remove pairs, or on which the pattern has no known form, stay in the first pattern. All of them do if
    there are more than MOST_STRIDES strides.
    """
    on: list[tuple[int, Pattern]] = []
    strides = _strides(pattern)
    for stride in strides if len(strides) <= MOST_STRIDES else ():
        off = _replaced(pattern, Lattice(stride), NOTHING).canonical()
        there = both(_replaced(pattern, Lattice(stride), Full()), negate(off))
        if there.on_lattice(stride, 0) is not None:
            on.append((stride, there))
            pattern = off
    return pattern, on


def alike_residues(pattern: Pattern, stride: int, grid: Grid) -> Iterable[range]:
    """The first rows of the residues of a stride, in ranges of residues with equal queries, keys and pattern."""
    rows = min(stride, grid.q_len)
    assert isinstance(grid.q_start, int)
    ends = pattern.lattice_ends()
    if ends is None:
        return (range(row, row + 1) for row in range(rows))
    edges = {
        0,
        grid.keys.start,
        grid.keys.stop,
        *ends,
    }  # at their residues the number of positions changes
    turns = {grid.q_len % stride, *((position - grid.q_start) % stride for position in edges)}
    return [
        range(*cut) for cut in pairwise(sorted({0, rows, *(turn for turn in turns if turn < rows)}))
    ]


def _strides(pattern: Pattern) -> list[int]:
    """The strides of the lattices that add pairs and never remove any."""
    added: set[int] = set()
    taken: set[int] = set()

    def look(part: Pattern, negated: bool) -> None:
        if isinstance(part, Many):
            for one in part.parts:
                look(one, negated)
        elif isinstance(part, Not):
            look(part.part, not negated)
        elif isinstance(part, Lattice) and part.stride > 1:
            (taken if negated else added).add(part.stride)

    look(pattern, False)
    return sorted(added - taken)


class TooLongError(Exception):
    """More row blocks are needed than a count may look at."""


@dataclass
class Looks:
    """How many row blocks a count may still look at."""

    left: int

    def spend(self, looks: int = 1) -> None:
        self.left -= looks
        if self.left < 0:
            raise TooLongError


def counted(
    pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int = MOST_LOOKS
) -> int | None:
    """The number of allowed pairs of a structured pattern, summed over its heads if it differs by them.

    Args:
        pattern: alike for all batch rows.
        q_len: queries.
        k_len: keys.
        q_start: position of the first query.
        looks: row blocks that may be looked at; bands and lattices need few of them at any size.

    Returns:
        The number, or None if it needs more looks.

    >>> from regard.patterns import Causal
    >>> counted(Causal(), 10**9, 10**9, 0) == 10**9 * (10**9 + 1) // 2
    True
    """
    count = _remembered if pattern.by_value else _counted
    return count(pattern, q_len, k_len, q_start, looks)


def _counted(pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int) -> int | None:
    if pattern.varies_by_head:
        assert pattern.heads is not None
        heads = [
            counted(pattern.for_head(h), q_len, k_len, q_start, looks) for h in range(pattern.heads)
        ]
        return None if None in heads else sum(one for one in heads if one is not None)
    try:
        return _count(pattern, Grid.whole(q_len, k_len, q_start), Looks(looks))
    except TooLongError:
        return None


_remembered = lru_cache(maxsize=64)(_counted)


def _closed(pattern: Pattern, grid: Grid) -> int | None:
    band = pattern.band()
    assert isinstance(grid.q_start, int)
    return None if band is None else band.count(grid.q_start, grid.q_len, grid.k_len)


def _count(pattern: Pattern, grid: Grid, looks: Looks) -> int:
    if (closed := _closed(pattern, grid)) is not None:
        return closed
    rest, on_lattices = off_lattices(simplified(pattern))
    if isinstance(rest, Not) and rest != NOTHING and not on_lattices:
        return grid.q_len * grid.k_len - _count(rest.part, grid, looks)
    total = sum(_count_on(there, stride, grid, looks) for stride, there in on_lattices)
    if (closed := _closed(rest, grid)) is not None:
        return total + closed
    blocks = EvaluatedBlocks(rest, grid)
    if rest != NOTHING and grid.q_len // ROWS > looks.left:
        raise TooLongError
    for block in in_row_blocks(rest, grid) if rest != NOTHING else ():
        looks.spend(max(1, (len(block.full) + len(block.partial)) // 4))
        total += len(block.rows) * size(block.full) + _looked(blocks, block, looks)
    return total


def _looked(blocks: EvaluatedBlocks, block: RowBlock, looks: Looks) -> int:
    """Allowed pairs among the keys that must be checked pair by pair."""
    pairs = 0
    for keys in block.partial:
        step = max(1, CHUNK // len(block.rows))
        for at in range(0, len(keys), step):
            looks.spend(4 * len(block.rows) * min(step, len(keys) - at) >> LOOK)
            pairs += int(blocks.allowed(block.rows, keys[at : at + step]).sum())
    return pairs


def _count_on(pattern: Pattern, stride: int, grid: Grid, looks: Looks) -> int:
    """Allowed pairs that lie on a lattice, residue by residue."""
    total = 0
    for rows in alike_residues(pattern, stride, grid):
        looks.spend()
        there, inner = _residue(pattern, stride, grid, rows.start)
        total += len(rows) * _count(there, inner, looks) if inner.k_len > 0 else 0
    return total


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int) -> tuple[Pattern, Grid]:
    """The pattern on the lattice through a row, and the grid of the positions there."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    there = pattern.on_lattice(stride, residue)
    assert there is not None
    q_len = -((row - grid.q_len) // stride)
    k_len = -((residue - grid.k_len) // stride)
    return there.canonical(), Grid.whole(q_len, k_len, (grid.q_start + row - residue) // stride)
