"""What a program would cost where there is too much of it to lower: from a sample of its strips and residues.

It follows `lowering` step by step, and makes nothing that could be run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from regard.kernels.tiled.apart import APART_ROWS, look_apart
from regard.kernels.tiled.lowering import lower, taken_apart
from regard.kernels.tiled.program import Look, Terms, Work
from regard.kernels.tiled.residues import residue_at, whole_kind, worth_a_mask
from regard.kernels.tiled.strips import goes_on, looked
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, simplified
from regard.patterns.ranges import Ranges, size
from regard.patterns.row_blocks import Answers as Blocks
from regard.patterns.survey import Budget, SpentError, estimated, look_cost, turning_rows

FEW = 256  # looks for the program of one residue, before it is estimated too
STRIPS_A_CALL = 16  # gathered ones, as `Program.calls` counts them


def about(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """About what the program of a pattern costs."""
    pattern = simplified(pattern)
    apart, rest, on = taken_apart(pattern, grid)
    work = _strips(rest, grid, terms) if rest != NOTHING else Work(0, 0, 0, 0)
    for stride, there in on:
        work += _on_lattice(there, stride, grid, terms)
    for rows in apart:
        work += _apart(pattern, grid, rows)
    return work


def _strips(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """Of strips: a steady run is one call, others are gathered and counted by their name."""
    assert isinstance(grid.q_start, int)
    blocks, rows = Blocks(pattern, grid), terms.rows
    alike: set[tuple[Hashable, ...]] = set()

    def at(strip: int) -> tuple[Look, tuple[Hashable, ...]]:
        first = strip * rows
        return looked(blocks, range(first, min(first + rows, grid.q_len)), terms.by_distance)

    def look(strip: int) -> tuple[float, ...]:
        here, name = at(strip)
        if len(here.keys) == 1 and (strip + 1) * rows < grid.q_len:
            behind, next_name = at(strip + 1)
            if next_name == name and len(behind.keys) == 1 and goes_on(here, behind):
                alike.add(name)
                return here.pairs, 0, 0
        own = any(type(part) is object for part in name)  # like no other strip
        if not own:
            alike.add(name)
        return here.pairs, 1 if own else 1 / STRIPS_A_CALL, size(here.keys)

    strips = -(-grid.q_len // rows)
    cost = look_cost(2 * len(at(strips // 2)[0].keys))
    turns = turning_rows(pattern, grid.q_start, grid.q_len, grid.k_len)
    pairs, calls, gathered = estimated(strips, look, (row // rows for row in turns), cost)
    return Work(pairs, calls + len(alike), gathered, 0)


def _on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms) -> Work:
    spans = alike_residues(pattern, stride, grid)
    farther = terms.farther(stride)
    if isinstance(spans, list):
        found = [(_residue(pattern, stride, grid, rows.start, farther), len(rows)) for rows in spans]
        sums = [sum(counts[at] * rows for counts, rows in found) for at in (0, 2)]
        return Work(sums[0], sum(counts[1] for counts, _ in found), sums[1], len(spans))
    rows = min(stride, grid.q_len)
    pairs, calls, gathered = estimated(rows, lambda row: _residue(pattern, stride, grid, row, farther), (), cost=8)
    return Work(pairs, calls, gathered, rows)


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int, terms: Terms) -> tuple[int, int, int]:
    """Pairs, calls and gathered keys of one residue."""
    residue = residue_at(pattern, stride, grid, row)
    if residue is None:
        return 0, 0, 0
    if whole_kind(residue) is not None:
        return residue.size * residue.width, 1, 0
    try:
        work = lower(residue.pattern, residue.grid, replace(terms, budget=Budget(FEW))).work
    except SpentError:
        work = about(residue.pattern, residue.grid, terms)
    if worth_a_mask(residue, work.pairs):
        return residue.size * residue.width, 1, 0
    return work.pairs, work.calls, work.gathered


def _apart(pattern: Pattern, grid: Grid, rows: range) -> Work:
    """Of one run of rows apart."""

    def look(at: int) -> tuple[int, int]:
        here: Ranges = (rows[at * APART_ROWS : (at + 1) * APART_ROWS],)
        return look_apart(pattern, grid, here).pairs, 1

    pairs, calls = estimated(-(-len(rows) // APART_ROWS), look, (), cost=16)
    return Work(pairs, calls, 0, 0)
