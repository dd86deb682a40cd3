"""Queries that look further than their neighbours, as global tokens do: taken out of the strips."""

from __future__ import annotations

from regard.kernels.tiled.program import Look
from regard.patterns import Grid, Pattern, QuerySet
from regard.patterns.lattices import leaves
from regard.patterns.ranges import Ranges, common, covers, size, union
from regard.patterns.survey import Budget

APART_ROWS = 256  # at most in one call


def rows_apart(pattern: Pattern, grid: Grid) -> Ranges:
    """Rows whose queries some part of the pattern names."""
    assert isinstance(grid.q_start, int)
    named = union(run for leaf in leaves(pattern) if isinstance(leaf, QuerySet) for run in leaf.runs)
    rows = tuple(range(run.start - grid.q_start, run.stop - grid.q_start) for run in named)
    return common(rows, (grid.rows,))


def looks_apart(pattern: Pattern, grid: Grid, apart: Ranges, budget: Budget) -> tuple[Look, ...]:
    """The rows apart, those that stand together together, the others gathered, a few hundred at a time."""
    assert isinstance(grid.q_start, int)
    waiting: list[range] = []
    looks: list[Look] = []
    for run in apart:
        for at in range(run.start, run.stop, APART_ROWS):
            budget.spend()
            waiting.append(range(at, min(run.stop, at + APART_ROWS)))
            if size(tuple(waiting)) >= APART_ROWS:
                looks.append(look_apart(pattern, grid, tuple(waiting)))
                waiting = []
    return tuple([*looks, look_apart(pattern, grid, tuple(waiting))] if waiting else looks)


def look_apart(pattern: Pattern, grid: Grid, rows: Ranges) -> Look:
    assert isinstance(grid.q_start, int)
    seen = [pattern.segments(grid.q_start + run.start, grid.q_start + run.stop - 1, grid.k_len) for run in rows]
    keys = union(keys for one in seen for keys in one.some)
    sure = all(covers(one.full, run) for one in seen for run in keys)
    return Look(rows, keys, sure)
