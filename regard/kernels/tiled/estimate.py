"""What a program would cost where there is too much of it to lower: from a sample of its row blocks and
residues.

It follows `grouping.lower` step by step, and makes nothing that could be run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from regard.kernels.tiled.grouping import (
    APART_ROWS,
    GATHERED,
    Terms,
    Work,
    goes_on,
    group_apart,
    lower,
    name_of,
    one_run,
    residue_at,
    schedule_of,
    taken_apart,
    whole_kind,
    worth_a_mask,
)
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, simplified
from regard.patterns.ranges import Ranges
from regard.patterns.row_blocks import Answers, RowBlock
from regard.patterns.survey import Budget, SpentError, estimated, look_cost

FEW = 256  # looks for the program of one residue, before it is estimated too


def about(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """About what the program of a pattern costs."""
    pattern = simplified(pattern)
    apart, rest, on = taken_apart(pattern, grid)
    work = _groups(rest, grid, terms) if rest != NOTHING else Work(0, 0, 0, 0)
    for stride, there in on:
        work += _on_lattice(there, stride, grid, terms)
    for rows in apart:
        work += _apart(pattern, grid, rows)
    return work


def _groups(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """Of groups: row blocks that go on alike are one call, others are gathered and counted by their name."""
    answers, schedule = Answers(pattern, grid), schedule_of(pattern, grid, terms.rows)
    alike: set[tuple[Hashable, ...]] = set()

    def measure(block: RowBlock) -> tuple[float, ...]:
        name = name_of(answers, block, terms.by_distance)
        if one_run(block) and block.rows.stop < grid.q_len:
            following = schedule.block_at(block.rows.stop)
            steady = one_run(following) and goes_on(block, following)
            if steady and name_of(answers, following, terms.by_distance) == name:
                alike.add(name)
                return block.pairs, 0, 0
        own = any(type(part) is object for part in name)  # like no other row block
        if not own:
            alike.add(name)
        return block.pairs, 1 if own else 1 / GATHERED, block.width

    cost = look_cost(2 * len(schedule.block_at(-(-grid.q_len // terms.rows) // 2 * terms.rows).runs))
    pairs, calls, gathered = schedule.estimated(measure, cost)
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
        return group_apart(pattern, grid, here).pairs, 1

    pairs, calls = estimated(-(-len(rows) // APART_ROWS), look, (), cost=16)
    return Work(pairs, calls, 0, 0)
