"""From a pattern's structure to a few dense calls.

    rows apart    queries that look further than their neighbours (global tokens) are taken out and computed alone
    lattices      what depends on a residue (strided, dilated) is dense among every stride-th position
    strips        the rest: neighbouring queries over the runs of keys that they see; strips that are alike make one
                  call, over windows in place where each strip's keys are one run, over gathered keys where they are not

These share no pair, so the parts are merged by their log-sum-exp. Nothing here reads a tensor.
"""

from __future__ import annotations

from regard.kernels.tiled.apart import looks_apart, rows_apart
from regard.kernels.tiled.program import Program, Terms
from regard.kernels.tiled.residues import on_lattice
from regard.kernels.tiled.strips import in_strips
from regard.patterns import Grid, Pattern, QuerySet
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import off_lattices, replaced, simplified
from regard.patterns.ranges import Ranges
from regard.patterns.row_blocks import Answers as Blocks


def lower(pattern: Pattern, grid: Grid, terms: Terms) -> Program:
    """The program for a pattern that is alike for all batch rows and heads.

    Raises:
        SpentError: it takes more looks than the budget of `terms` has.
    """
    pattern = simplified(pattern)
    apart, rest, on = taken_apart(pattern, grid)
    lattices = [part for stride, there in on for part in on_lattice(there, stride, grid, terms, lower)]
    blocks = Blocks(rest, grid)
    strips = in_strips(blocks, terms)
    alone = looks_apart(pattern, grid, apart, terms.budget)
    return Program(blocks, grid, strips, tuple(lattices), alone, Blocks(pattern, grid), terms.distance)


def taken_apart(pattern: Pattern, grid: Grid) -> tuple[Ranges, Pattern, list[tuple[int, Pattern]]]:
    """The rows apart, what is computed in strips, and what lies on the lattice of each stride."""
    apart = rows_apart(pattern, grid)
    others = replaced(pattern, QuerySet, NOTHING).canonical() if apart else pattern
    return apart, *off_lattices(others)
