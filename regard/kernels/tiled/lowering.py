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
from regard.patterns.narrowing import Blocks


def lower(pattern: Pattern, grid: Grid, terms: Terms) -> Program:
    """The program for a pattern that is alike for all batch rows and heads."""
    pattern = simplified(pattern)
    apart = rows_apart(pattern, grid)
    others = replaced(pattern, QuerySet, NOTHING).canonical() if apart else pattern
    rest, on = off_lattices(others)
    lattices = [part for stride, there in on for part in on_lattice(there, stride, grid, terms, lower)]
    blocks = Blocks(rest, grid)
    strips = in_strips(blocks, terms)
    alone = looks_apart(pattern, grid, apart)
    return Program(blocks, grid, strips, tuple(lattices), alone, Blocks(pattern, grid), terms.distance)
