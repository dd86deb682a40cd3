"""What depends on a residue is dense among every stride-th position, so each residue is a small problem of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from regard.kernels.tiled.program import Lattices, Program, Terms
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.narrowing import Blocks

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

    def follows(self, other: Residue) -> bool:
        """Is this the neighbour of an equal residue?"""
        return replace(self, row=self.row - 1, key=self.key - 1) == other


def on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms, lower: Lower) -> tuple[Lattices, ...]:
    """The pattern on each residue of a lattice, equal neighbours together."""
    runs: list[list[Residue]] = []
    for residue in _residues(pattern, stride, grid):
        if runs and residue.follows(runs[-1][-1]):
            runs[-1].append(residue)
        else:
            runs.append([residue])
    return tuple(_lowered(run, stride, grid, terms.farther(stride), lower) for run in runs)


def _residues(pattern: Pattern, stride: int, grid: Grid) -> Iterator[Residue]:
    """One residue after the other, in the order of their first row, those left out that see nothing."""
    assert isinstance(grid.q_start, int)
    there: Pattern | None = None
    for row in range(min(stride, grid.q_len)):
        residue = (grid.q_start + row) % stride
        if there is None or pattern.period != 1:  # else every residue sees the same
            there = pattern.on_lattice(stride, residue)
            assert there is not None
            there = there.canonical()
        key = (residue - grid.keys.start) % stride
        size, width = (-(-(length - first) // stride) for length, first in ((grid.q_len, row), (len(grid.keys), key)))
        start = (grid.q_start + row - residue) // stride
        whole = Residue(there, start, size, (grid.keys.start + key - residue) // stride, width, row, key)
        if there != NOTHING and width > 0 and (trimmed := _trimmed(whole, stride)) is not None:
            yield trimmed


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


def _lowered(run: list[Residue], stride: int, grid: Grid, terms: Terms, lower: Lower) -> Lattices:
    one = run[0]
    keys = range(one.first_key, one.first_key + one.width)
    inner = Grid(one.size, keys.stop, one.start, range(one.size), keys, grid.device)
    kind, program = _kind(one.pattern, inner, terms, lower)
    return Lattices(stride, len(run), one.row, one.size, one.key, one.width, kind, program)


def _kind(pattern: Pattern, grid: Grid, terms: Terms, lower: Lower) -> tuple[str, Program]:
    """How a residue is computed, and the program that knows its pairs."""
    assert isinstance(grid.q_start, int)
    dense = Program(Blocks(pattern, grid), grid, (), distance=terms.distance)
    if pattern.sees_all(grid.q_start, grid.q_start + grid.q_len - 1, grid.keys):
        return "all", dense
    band = pattern.band()
    if band is not None and band.right is not None and grid.q_len == len(grid.keys):
        cut = band.left is not None or band.stop is not None or (band.start or 0) > grid.keys.start
        if not cut and grid.q_start + band.right == grid.keys.start:
            return "causal", dense
    program = lower(pattern, grid, terms)
    pairs = grid.q_len * len(grid.keys)
    if pairs <= RESIDUE_PAIRS and pairs <= 4 * program.pairs:
        return "masked", dense
    return "program", program
