"""How many pairs a structured pattern allows: the exact number, or an estimate where exact counting takes too long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from regard.patterns.algebra import NOTHING, Not
from regard.patterns.base import Pattern
from regard.patterns.grid import CHUNK, Grid
from regard.patterns.lattices import alike_residues, off_lattices, simplified
from regard.patterns.per_head import PerHead
from regard.patterns.ranges import size
from regard.patterns.row_blocks import ROWS, Answers, RowBlock, in_row_blocks, row_block_at
from regard.patterns.survey import Budget, SpentError, estimated, look_cost, turning_rows

LOOK = 13  # evaluating 2**LOOK pairs takes as long as one look
PIECES = 16  # of a long run of keys, evaluated for an estimate
PIECE = 1 << 12  # keys of one


@dataclass(frozen=True)
class Count:
    """Allowed pairs; `exact` is False where they were estimated from a sample."""

    pairs: int
    exact: bool = True


def counted(pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int) -> Count:
    """The number of allowed pairs of a structured pattern, summed over its heads if it differs by them.

    Args:
        pattern: alike for all batch rows.
        q_len: queries.
        k_len: keys.
        q_start: position of the first query.
        looks: blocks of rows that may be looked at; beyond them the count is an estimate.

    >>> from regard.patterns import Causal, Strided
    >>> counted(Causal() & Strided(64), 10**12, 10**12, 0, looks=100).exact
    True
    """
    count = _remembered if pattern.by_value else _counted
    return count(pattern, q_len, k_len, q_start, looks)


def _counted(pattern: Pattern, q_len: int, k_len: int, q_start: int, looks: int) -> Count:
    if pattern.varies_by_head:
        assert isinstance(pattern, PerHead)
        heads = [counted(part.for_head(h), q_len, k_len, q_start, looks) for h, part in enumerate(pattern.parts)]
        return Count(sum(one.pairs for one in heads), all(one.exact for one in heads))
    grid = Grid.whole(q_len, k_len, q_start)
    try:
        return Count(_count(pattern, grid, Budget(looks)))
    except SpentError:
        return Count(max(0, min(q_len * k_len, _estimate(pattern, grid))), exact=False)


_remembered = lru_cache(maxsize=64)(_counted)


def _closed(pattern: Pattern, grid: Grid) -> int | None:
    """The count of a band, which needs no look."""
    band = pattern.band()
    assert isinstance(grid.q_start, int)
    return None if band is None else band.count(grid.q_start, grid.q_len, grid.k_len)


def _count(pattern: Pattern, grid: Grid, budget: Budget) -> int:
    if (closed := _closed(pattern, grid)) is not None:
        return closed
    rest, on_lattices = off_lattices(simplified(pattern))
    if isinstance(rest, Not) and rest != NOTHING and not on_lattices:
        return grid.q_len * grid.k_len - _count(rest.part, grid, budget)
    total = sum(_count_on(there, stride, grid, budget) for stride, there in on_lattices)
    if (closed := _closed(rest, grid)) is not None:
        return total + closed
    blocks = Answers(rest, grid)
    budget.need(grid.q_len // ROWS if rest != NOTHING else 0)
    for block in in_row_blocks(rest, grid) if rest != NOTHING else ():
        budget.spend(len(block.full) + len(block.partial))
        total += len(block.rows) * size(block.full) + _looked(blocks, block, budget)
    return total


def _looked(blocks: Answers, block: RowBlock, budget: Budget) -> int:
    """Allowed pairs among the keys that must be checked pair by pair."""
    pairs = 0
    for keys in block.partial:
        step = max(1, CHUNK // len(block.rows))
        for at in range(0, len(keys), step):
            budget.spend(4 * len(block.rows) * min(step, len(keys) - at) >> LOOK)
            pairs += int(blocks.allowed(block.rows, keys[at : at + step]).sum())
    return pairs


def _count_on(pattern: Pattern, stride: int, grid: Grid, budget: Budget) -> int:
    """Allowed pairs that lie on a lattice, residue by residue."""
    total = 0
    for rows in alike_residues(pattern, stride, grid):
        budget.spend()
        there, inner = _residue(pattern, stride, grid, rows.start)
        total += len(rows) * _count(there, inner, budget) if inner.k_len > 0 else 0
    return total


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int) -> tuple[Pattern, Grid]:
    """The pattern on the lattice through a row, and the grid of the positions there."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    there = pattern.on_lattice(stride, residue)
    assert there is not None
    q_len, k_len = -((row - grid.q_len) // stride), -((residue - grid.k_len) // stride)
    return there.canonical(), Grid.whole(q_len, k_len, (grid.q_start + row - residue) // stride)


def _estimate(pattern: Pattern, grid: Grid) -> int:
    if (closed := _closed(pattern, grid)) is not None:
        return closed
    rest, on_lattices = off_lattices(simplified(pattern))
    if isinstance(rest, Not) and rest != NOTHING and not on_lattices:
        return grid.q_len * grid.k_len - _estimate(rest.part, grid)
    total = sum(_estimate_on(there, stride, grid) for stride, there in on_lattices)
    if rest == NOTHING or (closed := _closed(rest, grid)) is not None:
        return total + (closed or 0)
    assert isinstance(grid.q_start, int)
    turns = turning_rows(rest, grid.q_start, grid.q_len, grid.k_len)
    blocks, cost = Answers(rest, grid), _cost(rest, grid)

    def look(at: int) -> tuple[float]:
        block = row_block_at(rest, grid, at * ROWS)
        looked = sum(_about(blocks, block.rows, keys) for keys in block.partial)
        return (len(block.rows) * size(block.full) + looked,)

    return total + sum(estimated(-(-grid.q_len // ROWS), look, (turn // ROWS for turn in turns), cost))


def _cost(pattern: Pattern, grid: Grid) -> int:
    """The cost of looking at the middle block."""
    block = row_block_at(pattern, grid, grid.q_len // 2)
    return look_cost(len(block.full) + len(block.partial))


def _about(blocks: Answers, rows: range, keys: range) -> int:
    """Allowed pairs of a run of keys; an estimate for a long run."""
    if len(keys) <= PIECE * PIECES:
        return int(blocks.allowed(rows, keys).sum())
    assert isinstance(blocks.grid.q_start, int)
    here = blocks.grid.q_start + rows.start - keys.start
    pieces = -(-len(keys) // PIECE)
    look = lambda at: (int(blocks.allowed(rows, keys[at * PIECE : (at + 1) * PIECE]).sum()),)  # noqa: E731
    turns = [here // PIECE] if 0 <= here < len(keys) else []
    return estimated(pieces, look, (*turns, pieces - 1), cost=64)[0]


def _estimate_on(pattern: Pattern, stride: int, grid: Grid) -> int:
    def pairs(row: int) -> int:
        there, inner = _residue(pattern, stride, grid, row)
        return _estimate(there, inner) if inner.k_len > 0 else 0

    spans = alike_residues(pattern, stride, grid)
    if isinstance(spans, list):
        return sum(len(rows) * pairs(rows.start) for rows in spans)
    return sum(estimated(min(stride, grid.q_len), lambda row: (pairs(row),), (), cost=8))
