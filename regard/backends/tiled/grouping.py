"""Turns a pattern's structure into a program: a few dense calls. No tensor is read. A program has three parts:

    groups     row blocks of the schedule that share a mask are one call: over windows in place if the keys of each are
               one run, else over gathered keys
    residues   a strided or dilated pattern is dense among every stride-th position, so each residue is a small problem
               with a schedule of its own
    apart      rows that look further than their neighbours (global tokens) are computed separately

The parts have no pair in common, so their results are merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from regard.backends.schedule import Schedule, joined
from regard.backends.tiled.program import Group, Program, Residues, Terms
from regard.patterns import Full, Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, off_lattices, off_queries, simplified
from regard.patterns.ranges import Ranges, common, covers, size, union
from regard.patterns.row_blocks import Answers, Kind, RowBlock
from regard.patterns.survey import Budget

APART_ROWS = 256  # separate rows in one call, at most
RESIDUE_PAIRS = 1 << 20  # the largest residue that is computed as one call, with a mask if needed


def lower(pattern: Pattern, grid: Grid, terms: Terms) -> Program:
    """The program for a pattern that is the same for all batch rows and heads.

    Raises:
        SpentError: it needs more evaluations than the budget of `terms` has.
    """
    pattern = simplified(pattern)
    apart, rest, on_strides = taken_apart(pattern, grid)
    residues = [part for stride, there in on_strides for part in on_lattice(there, stride, grid, terms)]
    answers = Answers(rest, grid)
    return Program(
        answers, grid, grouped(answers, terms), tuple(residues), groups_apart(pattern, grid, apart, terms.budget),
        Answers(pattern, grid), terms.distance,
    )  # fmt: skip


def taken_apart(pattern: Pattern, grid: Grid) -> tuple[Ranges, Pattern, list[tuple[int, Pattern]]]:
    """The separate rows, the pattern that groups compute, and the pattern on the lattice of each stride."""
    assert isinstance(grid.q_start, int)
    named, others = off_queries(pattern)
    rows = tuple(range(run.start - grid.q_start, run.stop - grid.q_start) for run in named)
    apart = common(rows, (grid.rows,))
    return apart, *off_lattices(others if apart else pattern)


def schedule_of(pattern: Pattern, grid: Grid, rows: int) -> Schedule:
    """The schedule of a grid."""
    assert isinstance(grid.q_start, int)
    return Schedule(pattern, grid.q_len, grid.k_len, (grid.q_start, grid.q_start), grid.keys, rows)


def grouped(answers: Answers, terms: Terms) -> tuple[Group, ...]:
    """The groups of a schedule: row blocks with equal masks together."""
    if answers.pattern == NOTHING:
        return ()
    grouping = _Grouping()
    for block in schedule_of(answers.pattern, answers.grid, terms.rows):
        terms.budget.spend(len(block.runs))
        grouping.take(block, name_of(answers, block, terms.by_distance))
    return grouping.result()


class _Grouping:
    """Collects row blocks into groups: equal consecutive ones are counted, others are pooled by name."""

    def __init__(self) -> None:
        self.steady: list[Group] = []
        self.pools: dict[tuple[Hashable, ...], list[RowBlock]] = {}
        self.first: RowBlock | None = None  # the first of the equal consecutive row blocks
        self.last: RowBlock | None = None
        self.name: tuple[Hashable, ...] = ()
        self.count = 0

    def take(self, block: RowBlock, name: tuple[Hashable, ...]) -> None:
        if not one_run(block):
            self._end()
            if block.runs:
                self.pools.setdefault(name, []).extend(block.each())
            return
        if self.last is None or name != self.name or not goes_on(self.last, block):
            self._end()
            self.first, self.name = replace(block, times=1), name
        self.last = block.moved((block.times - 1) * len(block.rows))
        self.count += block.times

    def result(self) -> tuple[Group, ...]:
        self._end()
        return (*self.steady, *(_pooled(blocks) for blocks in self.pools.values()))

    def _end(self) -> None:
        if self.first is not None and self.count > 1:
            self.steady.append(Group((self.first.rows,), (self.first.hull,), is_whole(self.first), self.count))
        elif self.first is not None:
            self.pools.setdefault(self.name, []).append(self.first)
        self.first = self.last = None
        self.count = 0


def _pooled(blocks: list[RowBlock]) -> Group:
    """A group of row blocks at any positions; a single one over one run of keys needs no gathering."""
    first = blocks[0]
    if len(blocks) == 1 and one_run(first):
        return Group((first.rows,), (first.hull,), is_whole(first))
    members = tuple(((block.rows,), gathered_keys(block)) for block in blocks)
    return Group((first.rows,), gathered_keys(first), is_whole(first), len(blocks), members)


def one_run(block: RowBlock) -> bool:
    """Whether the keys of a row block have no gap."""
    return len(joined(tuple(run.keys for run in block.runs))) == 1


def is_whole(block: RowBlock) -> bool:
    """Whether every row may look at every key of the block."""
    return all(run.kind == Kind.WHOLE for run in block.runs)


def gathered_keys(block: RowBlock) -> Ranges:
    """The keys in an order that makes more masks equal: with several runs, those that need no mask come first."""
    return (block.hull,) if one_run(block) else (*block.full, *block.partial)


def goes_on(before: RowBlock, block: RowBlock) -> bool:
    """Whether a row block over one run of keys is the one before, with rows and keys moved by its rows."""
    return block.hull.start - before.hull.start == block.rows.start - before.rows.start


def name_of(answers: Answers, block: RowBlock, by_distance: bool) -> tuple[Hashable, ...]:
    """A name that row blocks with equal masks share; a mask that equals no other has a new object in its name."""
    single = one_run(block)
    name: list[Hashable] = [len(block.rows), single, size(block.full)]
    for run in block.runs:
        if run.kind == Kind.WHOLE and not (single or by_distance):
            continue
        name.append(len(run.keys))
        whole = run.kind == Kind.WHOLE
        name.append(Full() if whole else (answers.identity(block.rows, run.keys) or object()))
        name.append(run.keys.start - block.rows.start if by_distance else 0)
    return tuple(name)


def groups_apart(pattern: Pattern, grid: Grid, apart: Ranges, budget: Budget) -> tuple[Group, ...]:
    """The groups of the separate rows, a few hundred rows each."""
    waiting: list[range] = []
    groups: list[Group] = []
    for rows in apart:
        for at in range(rows.start, rows.stop, APART_ROWS):
            budget.spend()
            waiting.append(range(at, min(rows.stop, at + APART_ROWS)))
            if size(tuple(waiting)) >= APART_ROWS:
                groups.append(group_apart(pattern, grid, tuple(waiting)))
                waiting = []
    return tuple([*groups, group_apart(pattern, grid, tuple(waiting))] if waiting else groups)


def group_apart(pattern: Pattern, grid: Grid, rows: Ranges) -> Group:
    """The group of some separate rows, over all keys that any of them may look at."""
    schedule = schedule_of(pattern, grid, grid.q_len)
    blocks = [schedule.block_of(one) for one in rows]
    keys = union(run.keys for block in blocks for run in block.runs)
    whole = all(covers(union(block.full), run) for block in blocks for run in keys)
    return Group(rows, keys, whole, members=() if len(rows) == len(keys) == 1 else ((rows, keys),))


@dataclass(frozen=True)
class Residue:
    """The positions of one residue, counted by n: queries from `start`, keys from `first_key`, and the pattern on them.

    Its first query is row `row` of the whole grid, and its first key is key number `key` of the grid.
    """

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
        """The residue that begins this many rows later, if the pattern on it is equal."""
        return replace(self, row=self.row + by, key=self.key + by)


def on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms) -> tuple[Residues, ...]:
    """The pattern on each residue of a stride, with equal neighbours together."""
    joined_residues: list[tuple[Residue, int]] = []
    for rows in alike_residues(pattern, stride, grid):
        terms.budget.spend()
        residue = residue_at(pattern, stride, grid, rows.start)
        if residue is None:
            continue
        first, count = joined_residues[-1] if joined_residues else (residue, 0)
        if count and residue == first.moved(count):
            joined_residues[-1] = first, count + len(rows)
        else:
            joined_residues.append((residue, len(rows)))
    return tuple(_lowered(one, count, stride, terms.farther(stride)) for one, count in joined_residues)


def residue_at(pattern: Pattern, stride: int, grid: Grid, row: int) -> Residue | None:
    """The residue whose first row is `row`; None if none of its pairs is allowed."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    there = pattern.on_lattice(stride, residue)
    assert there is not None
    there = there.canonical()
    key = (residue - grid.keys.start) % stride
    count, width = (-(-(length - first) // stride) for length, first in ((grid.q_len, row), (len(grid.keys), key)))
    start = (grid.q_start + row - residue) // stride
    whole = Residue(there, start, count, (grid.keys.start + key - residue) // stride, width, row, key, grid.device)
    return _trimmed(whole, stride) if there != NOTHING and width > 0 else None


def _trimmed(residue: Residue, stride: int) -> Residue | None:
    """The residue without leading empty rows and trailing hidden keys, for patterns without a limit on the left;
    None if nothing is left."""
    band = residue.pattern.band()
    if band is None or band.right is None or band.left is not None:
        return residue
    empty = max(0, residue.first_key - (residue.start + band.right))
    visible = min(residue.width, residue.start + residue.size + band.right - residue.first_key)
    if empty >= residue.size or visible <= 0:
        return None
    row, start = residue.row + empty * stride, residue.start + empty
    return replace(residue, row=row, start=start, size=residue.size - empty, width=visible)


def _lowered(one: Residue, count: int, stride: int, terms: Terms) -> Residues:
    kind = whole_kind(one)
    program = Program(Answers(one.pattern, one.grid), one.grid, distance=terms.distance)
    if kind is None:
        kind, inner = "program", lower(one.pattern, one.grid, terms)
        if worth_a_mask(one, inner.pairs):
            kind = "masked"
        else:
            program = inner
    return Residues(stride, count, one.row, one.size, one.key, one.width, kind, program)


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
    """Whether computing all pairs of a residue with a mask is cheaper than its program."""
    dense = residue.size * residue.width
    return dense <= RESIDUE_PAIRS and dense <= 4 * pairs
