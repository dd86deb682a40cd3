"""How many pairs a structured pattern allows, unless exact counting takes too long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from regard.patterns.algebra import NOTHING, Not
from regard.patterns.base import MOST_LOOKS, Pattern
from regard.patterns.grid import CHUNK, Grid
from regard.patterns.lattices import alike_residues, off_lattices, simplified
from regard.patterns.per_head import PerHead
from regard.patterns.ranges import size
from regard.patterns.row_blocks import ROWS, Answers, RowBlock, in_row_blocks

LOOK = 13  # evaluating 2**LOOK pairs takes as long as looking at one row block


class TooLongError(Exception):
    """More row blocks are needed than a count may look at."""


@dataclass
class Looks:
    """How many row blocks a count may still look at."""

    left: int

    def spend(self, looks: int = 1) -> None:
        """Count some; raises a TooLongError if they are not left."""
        self.left -= looks
        if self.left < 0:
            raise TooLongError


def counted(pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int = MOST_LOOKS) -> int | None:
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
        assert isinstance(pattern, PerHead)
        heads = [counted(part.for_head(h), q_len, k_len, q_start, looks) for h, part in enumerate(pattern.parts)]
        return None if None in heads else sum(one for one in heads if one is not None)
    try:
        return _count(pattern, Grid.whole(q_len, k_len, q_start), Looks(looks))
    except TooLongError:
        return None


_remembered = lru_cache(maxsize=64)(_counted)


def _closed(pattern: Pattern, grid: Grid) -> int | None:
    """The count of a band, which needs no look."""
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
    blocks = Answers(rest, grid)
    if rest != NOTHING and grid.q_len // ROWS > looks.left:
        raise TooLongError
    for block in in_row_blocks(rest, grid) if rest != NOTHING else ():
        looks.spend(max(1, (len(block.full) + len(block.partial)) // 4))
        total += len(block.rows) * size(block.full) + _looked(blocks, block, looks)
    return total


def _looked(blocks: Answers, block: RowBlock, looks: Looks) -> int:
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
    q_len, k_len = -((row - grid.q_len) // stride), -((residue - grid.k_len) // stride)
    return there.canonical(), Grid.whole(q_len, k_len, (grid.q_start + row - residue) // stride)
