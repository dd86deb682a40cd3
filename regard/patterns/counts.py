"""Counts the pairs that a pattern allows, and bounds their number from below."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from regard.errors import ArgumentError
from regard.patterns.algebra import NOTHING, Both, Full, Not, band_and_rest
from regard.patterns.band import EVERY_PAIR, Band
from regard.patterns.base import AnyOf, Pattern
from regard.patterns.chosen import Chosen
from regard.patterns.grid import CHUNK, Grid, grids_of_rows
from regard.patterns.lattices import alike_residues, off_lattices, residue_of, simplified
from regard.patterns.per_head import PerHead
from regard.patterns.ranges import size
from regard.patterns.row_blocks import ROWS, EvaluatedBlocks, RowBlock, in_row_blocks

MOST_PAIRS = 1 << 44  # that are counted one by one
MOST_LOOKS = 1 << 22  # row blocks looked at for one count
# What takes about as long as looking at one row block: so many runs of keys, or so many pairs that are evaluated.
RUNS_OF_A_LOOK = 4
PAIRS_OF_A_LOOK = 1 << 11


def count(pattern: Pattern, q_len: int, k_len: int, q_start: int | torch.Tensor | None) -> int:
    """Allowed pairs; summed over the batch rows or heads where the pattern itself differs by them."""
    if isinstance(pattern, PerHead) and not pattern.varies_by_row:
        return sum(count(head, q_len, k_len, q_start) for head in pattern.by_head)
    grid = Grid.whole(q_len, k_len, q_start)
    alike = not (pattern.varies_by_head or pattern.varies_by_row or grid.per_batch)
    if alike and pattern.band() is not None:
        return _count_of_band(pattern, grid)
    if alike and pattern.structured:
        assert isinstance(grid.q_start, int)
        pairs = counted(pattern, q_len, k_len, grid.q_start)
        if pairs is not None:
            return pairs
        raise ArgumentError(
            f"{pattern} has no closed count, and {q_len} x {k_len} pairs need more than {MOST_LOOKS} looks; count "
            f"fewer queries at a time"
        )
    if q_len * k_len > MOST_PAIRS:
        raise ArgumentError(
            f"{pattern} can only be counted pair by pair, and {q_len} x {k_len} pairs are too many; count fewer "
            f"queries at a time"
        )
    return sum(int(pattern.evaluate(block).sum()) for block in grids_of_rows(grid))


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
    compute = _remembered_count if pattern.by_value else _count_heads
    return compute(pattern, q_len, k_len, q_start, looks)


def _count_heads(pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int) -> int | None:
    if pattern.varies_by_head:
        assert pattern.heads is not None
        total = 0
        for head in range(pattern.heads):
            pairs = counted(pattern.for_head(head), q_len, k_len, q_start, looks)
            if pairs is None:
                return None
            total += pairs
        return total
    try:
        return _count_of_head(pattern, Grid.whole(q_len, k_len, q_start), Looks(looks))
    except TooLongError:
        return None


_remembered_count = lru_cache(maxsize=64)(_count_heads)


def _count_of_head(pattern: Pattern, grid: Grid, looks: Looks) -> int:
    """Allowed pairs of a structured pattern that is alike for all heads, by its bands, lattices and row blocks."""
    if pattern.band() is not None:
        return _count_of_band(pattern, grid)
    rest, on_lattices = off_lattices(simplified(pattern))
    if isinstance(rest, Not) and rest != NOTHING and not on_lattices:
        return grid.q_len * grid.k_len - _count_of_head(rest.part, grid, looks)
    total = 0
    for stride, part in on_lattices:
        total += _count_on_lattice(part, stride, grid, looks)
    if rest == NOTHING:
        return total
    if rest.band() is not None:
        return total + _count_of_band(rest, grid)
    return total + _count_in_row_blocks(rest, grid, looks)


def _count_of_band(pattern: Pattern, grid: Grid) -> int:
    band = pattern.band()
    assert band is not None
    assert isinstance(grid.q_start, int)
    return band.count(grid.q_start, grid.q_len, grid.k_len)


def _count_on_lattice(pattern: Pattern, stride: int, grid: Grid, looks: Looks) -> int:
    """Allowed pairs that lie on a lattice, residue by residue."""
    total = 0
    for rows in alike_residues(pattern, stride, grid):
        looks.spend()
        residue = residue_of(pattern, stride, grid, rows.start)
        if residue.width > 0:
            on_lattice = Grid.whole(residue.size, residue.width, residue.start)
            total += len(rows) * _count_of_head(residue.pattern, on_lattice, looks)
    return total


def _count_in_row_blocks(pattern: Pattern, grid: Grid, looks: Looks) -> int:
    """Allowed pairs, row block by row block: the certain keys are counted, the others are evaluated."""
    if grid.q_len // ROWS > looks.left:
        raise TooLongError
    blocks = EvaluatedBlocks(pattern, grid)
    total = 0
    for block in in_row_blocks(pattern, grid):
        runs = len(block.full) + len(block.partial)
        looks.spend(max(1, runs // RUNS_OF_A_LOOK))
        total += len(block.rows) * size(block.full)
        total += _count_of_unsure_keys(blocks, block, looks)
    return total


def _count_of_unsure_keys(blocks: EvaluatedBlocks, block: RowBlock, looks: Looks) -> int:
    """Allowed pairs among the keys that must be checked pair by pair."""
    rows = len(block.rows)
    step = max(1, CHUNK // rows)
    pairs = 0
    for keys in block.partial:
        for first in range(0, len(keys), step):
            chunk = keys[first : first + step]
            looks.spend(rows * len(chunk) // PAIRS_OF_A_LOOK)
            pairs += int(blocks.allowed(block.rows, chunk).sum())
    return pairs


def least_pairs(
    pattern: Pattern, first: int, q_len: int, k_len: int, within: Band = EVERY_PAIR
) -> int:
    """A lower bound of the number of allowed pairs of one head within a band, which takes little time.

    No backend can need less work than these pairs, so a plan may leave expensive ones unassessed.

    Args:
        pattern: the pattern.
        first: the position of the first query.
        q_len: the number of queries.
        k_len: the number of keys.
        within: pairs outside of this band are not counted.
    """
    if isinstance(pattern, AnyOf):
        parts = pattern.made_of()
        return max(least_pairs(part, first, q_len, k_len, within) for part in parts)
    if isinstance(pattern, Both):
        band, rest = band_and_rest(pattern.parts)
        if len(rest) > 1:
            return 0
        inner = rest[0] if rest else Full()
        return least_pairs(inner, first, q_len, k_len, within & band)
    if isinstance(pattern, Chosen):
        return pattern.least_pairs(first, q_len, k_len, within)
    band = pattern.known_band
    if band is None:
        return 0
    if within is not EVERY_PAIR:
        band = band & within
    return band.count(first, q_len, k_len)
