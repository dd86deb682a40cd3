"""What depends on a residue is dense among every stride-th position, so each residue is a small problem of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from regard.kernels.tiled.program import Lattices, Program, Terms
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues
from regard.patterns.row_blocks import Answers as Blocks

RESIDUE_PAIRS = 1 << 20  # of a residue whose pairs are all computed, with a mask if need be

Lower = Callable[[Pattern, Grid, Terms], Program]


@dataclass(frozen=True)
class Residue:
    """The positions of one residue, counted by n: queries from `start`, keys from `first_key`, and the pattern on
    them; its first query is row `row` of the whole grid, its first key stands `key` behind the grid's first."""

    pattern: Pattern
    start: int
    size: int
    first_key: int
    width: int
    row: int
    key: int
    device: torch.device

    @property
    def grid(self) -> Grid:
        """Its positions, counted by n."""
        keys = range(self.first_key, self.first_key + self.width)
        return Grid(self.size, keys.stop, self.start, range(self.size), keys, self.device)

    def moved(self, by: int) -> Residue:
        """The neighbour so many rows on, if it is equal."""
        return replace(self, row=self.row + by, key=self.key + by)

    def follows(self, other: Residue) -> bool:
        """Is this the neighbour of an equal residue?"""
        return self.moved(-1) == other


def on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms, lower: Lower) -> tuple[Lattices, ...]:
    """The pattern on each residue of a lattice, equal neighbours together."""
    runs: list[tuple[Residue, int]] = []
    for rows in alike_residues(pattern, stride, grid):
        terms.budget.spend()
        residue = residue_at(pattern, stride, grid, rows.start)
        if residue is None:
            continue
        first, count = runs[-1] if runs else (residue, 0)
        if count and residue.follows(first.moved(count - 1)):
            runs[-1] = first, count + len(rows)
        else:
            runs.append((residue, len(rows)))
    return tuple(_lowered(one, count, stride, terms.farther(stride), lower) for one, count in runs)


def residue_at(pattern: Pattern, stride: int, grid: Grid, row: int) -> Residue | None:
    """The residue whose first row is `row`; None if it sees nothing."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    there = pattern.on_lattice(stride, residue)
    assert there is not None
    there = there.canonical()
    key = (residue - grid.keys.start) % stride
    size, width = (-(-(length - first) // stride) for length, first in ((grid.q_len, row), (len(grid.keys), key)))
    start = (grid.q_start + row - residue) // stride
    whole = Residue(there, start, size, (grid.keys.start + key - residue) // stride, width, row, key, grid.device)
    return _trimmed(whole, stride) if there != NOTHING and width > 0 else None


def _trimmed(residue: Residue, stride: int) -> Residue | None:
    """Without the first queries and last keys that see nobody, of a pattern open to the left; None if none is left."""
    band = residue.pattern.band()
    if band is None or band.right is None or band.left is not None:
        return residue
    blind = max(0, residue.first_key - (residue.start + band.right))
    seen = min(residue.width, residue.start + residue.size + band.right - residue.first_key)
    if blind >= residue.size or seen <= 0:
        return None
    row, start = residue.row + blind * stride, residue.start + blind
    return replace(residue, row=row, start=start, size=residue.size - blind, width=seen)


def _lowered(one: Residue, count: int, stride: int, terms: Terms, lower: Lower) -> Lattices:
    kind, program = _kind(one, terms, lower)
    return Lattices(stride, count, one.row, one.size, one.key, one.width, kind, program)


def _kind(residue: Residue, terms: Terms, lower: Lower) -> tuple[str, Program]:
    """How a residue is computed, and the program that knows its pairs."""
    pattern, grid = residue.pattern, residue.grid
    dense = Program(Blocks(pattern, grid), grid, (), distance=terms.distance)
    if (kind := whole_kind(residue)) is not None:
        return kind, dense
    program = lower(pattern, grid, terms)
    return ("masked", dense) if worth_a_mask(residue, program.pairs) else ("program", program)


def whole_kind(residue: Residue) -> str | None:
    """The kind of a residue that is one call without a mask; None for others."""
    pattern, grid = residue.pattern, residue.grid
    if pattern.sees_all(residue.start, residue.start + grid.q_len - 1, grid.keys):
        return "all"
    band = pattern.band()
    if band is not None and band.right is not None and grid.q_len == len(grid.keys):
        cut = band.left is not None or band.stop is not None or (band.start or 0) > grid.keys.start
        if not cut and residue.start + band.right == grid.keys.start:
            return "causal"
    return None


def worth_a_mask(residue: Residue, pairs: int) -> bool:
    """Is all of it computed with a mask, rather than the pairs of its program?"""
    dense = residue.size * residue.width
    return dense <= RESIDUE_PAIRS and dense <= 4 * pairs
