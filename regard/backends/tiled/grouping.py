"""From a pattern's structure to a few dense calls. Nothing here reads a tensor.

    groups     row blocks of the schedule that share a mask make one call: over windows in place where the keys of each
               are one run, over gathered keys where they are not
    residues   what depends on a residue (strided, dilated) is dense among every stride-th position, so that each
               residue is a small problem with a schedule of its own
    apart      queries that look further than their neighbours (global tokens), taken out and computed alone

These share no pair, so their results are merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property

import torch

from regard.backends.schedule import Schedule, joined
from regard.patterns import Full, Grid, Pattern, QuerySet
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, leaves, off_lattices, replaced, simplified
from regard.patterns.ranges import Ranges, common, covers, size, union
from regard.patterns.row_blocks import Answers, Kind, RowBlock
from regard.patterns.survey import Budget

APART_ROWS = 256  # rows apart in one call, at most
RESIDUE_PAIRS = 1 << 20  # of a residue whose pairs are all computed, with a mask if need be
GATHERED = 16  # gathered row blocks that cost as much as one call more


@dataclass(frozen=True)
class Terms:
    """How to cut: `rows` of a row block, and a `budget` of looks.

    `by_distance`: a bias depends on the distance, so row blocks are only alike where their keys stand alike too.
    `distance`: how far neighbours on a grid stand apart in the whole call.
    """

    rows: int
    by_distance: bool = False
    distance: int = 1
    budget: Budget = field(default_factory=Budget)

    def farther(self, stride: int) -> Terms:
        """The same on every stride-th position."""
        return replace(self, distance=self.distance * stride)


@dataclass(frozen=True, eq=False)
class Group:
    """Row blocks that share a mask and are computed by one call; `rows` and `keys` are those of the first.

    Row block t is the first one moved by t row blocks, keys and all, or else `members[t]`, which stands anywhere.
    `whole`: all of the pairs are allowed.
    """

    rows: Ranges
    keys: Ranges
    whole: bool
    count: int = 1
    members: tuple[tuple[Ranges, Ranges], ...] = ()

    @property
    def pairs(self) -> int:
        return size(self.rows) * size(self.keys) * self.count

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return size(self.keys) * self.count if self.members else 0

    @property
    def calls(self) -> int:
        return 1 + self.count // GATHERED if self.members else 1


@dataclass(frozen=True)
class Residues:
    """Neighbouring residues, all alike: row `first + r` and each `stride`-th one after it, over the keys likewise."""

    stride: int
    count: int
    first: int
    size: int
    first_key: int
    width: int
    kind: str  # "all", "causal", "masked", or "program"
    inner: Program

    @property
    def pairs(self) -> int:
        return self.count * (self.inner.pairs if self.kind == "program" else self.size * self.width)

    @property
    def calls(self) -> int:
        return self.inner.calls if self.kind == "program" else 1


@dataclass(frozen=True)
class Work:
    """What a program costs: pairs computed, calls, keys copied, and how many strides are merged."""

    pairs: int
    calls: int
    gathered: int
    merges: int

    def __add__(self, other: Work) -> Work:
        return Work(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class Program:
    """What to compute over one grid: groups with the answers of their pattern, residues of each stride, and rows apart
    with the answers of the `whole` pattern. `distance`: how far neighbours on the grid stand apart in the call."""

    answers: Answers
    grid: Grid
    groups: tuple[Group, ...] = ()
    residues: tuple[Residues, ...] = ()
    apart: tuple[Group, ...] = ()
    whole: Answers | None = None
    distance: int = 1

    @property
    def pairs(self) -> int:
        return sum(part.pairs for part in (*self.groups, *self.residues, *self.apart))

    @property
    def calls(self) -> int:
        return len(self.apart) + sum(part.calls for part in (*self.groups, *self.residues))

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return sum(group.gathered for group in self.groups)

    @property
    def work(self) -> Work:
        """What computing it costs."""
        return Work(self.pairs, self.calls, self.gathered, len(self.residues))

    @cached_property
    def covers_rows(self) -> bool:
        """Does a group compute each row of the grid?"""
        return sum(size(group.rows) * group.count for group in self.groups) == self.grid.q_len


def lower(pattern: Pattern, grid: Grid, terms: Terms) -> Program:
    """The program for a pattern that is alike for all batch rows and heads.

    Raises:
        SpentError: it takes more looks than the budget of `terms` has.
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
    """The rows apart, what is computed in groups, and what lies on the lattice of each stride."""
    apart = rows_apart(pattern, grid)
    others = replaced(pattern, QuerySet, NOTHING).canonical() if apart else pattern
    return apart, *off_lattices(others)


def schedule_of(pattern: Pattern, grid: Grid, rows: int) -> Schedule:
    """The schedule of a grid."""
    assert isinstance(grid.q_start, int)
    return Schedule(pattern, grid.q_len, grid.k_len, (grid.q_start, grid.q_start), grid.keys, rows)


def grouped(answers: Answers, terms: Terms) -> tuple[Group, ...]:
    """The row blocks of a schedule, those that share a mask together."""
    if answers.pattern == NOTHING:
        return ()
    grouping = _Grouping()
    for block in schedule_of(answers.pattern, answers.grid, terms.rows):
        terms.budget.spend(len(block.runs))
        grouping.take(block, name_of(answers, block, terms.by_distance))
    return grouping.result()


class _Grouping:
    """Row blocks as they come: those that go on alike are counted, the others are pooled by their names."""

    def __init__(self) -> None:
        self.steady: list[Group] = []
        self.pools: dict[tuple[Hashable, ...], list[RowBlock]] = {}
        self.first: RowBlock | None = None  # of those that go on alike
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
    """Row blocks that stand anywhere; a single one over one run of keys needs no gathering."""
    first = blocks[0]
    if len(blocks) == 1 and one_run(first):
        return Group((first.rows,), (first.hull,), is_whole(first))
    members = tuple(((block.rows,), gathered_keys(block)) for block in blocks)
    return Group((first.rows,), gathered_keys(first), is_whole(first), len(blocks), members)


def one_run(block: RowBlock) -> bool:
    """Do the keys of a row block have no gap?"""
    return len(joined(tuple(run.keys for run in block.runs))) == 1


def is_whole(block: RowBlock) -> bool:
    """May every row look at every key of the block?"""
    return all(run.kind == Kind.WHOLE for run in block.runs)


def gathered_keys(block: RowBlock) -> Ranges:
    """The keys in an order that more row blocks share: one run as it is, else those that need no mask come first."""
    return (block.hull,) if one_run(block) else (*block.full, *block.partial)


def goes_on(before: RowBlock, block: RowBlock) -> bool:
    """Does a row block over one run of keys stand by its rows as the one before it does?"""
    return block.hull.start - before.hull.start == block.rows.start - before.rows.start


def name_of(answers: Answers, block: RowBlock, by_distance: bool) -> tuple[Hashable, ...]:
    """A name that row blocks with equal masks share; what equals nothing has an object of its own in it."""
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


def rows_apart(pattern: Pattern, grid: Grid) -> Ranges:
    """Rows whose queries some part of the pattern names."""
    assert isinstance(grid.q_start, int)
    named = union(run for leaf in leaves(pattern) if isinstance(leaf, QuerySet) for run in leaf.runs)
    rows = tuple(range(run.start - grid.q_start, run.stop - grid.q_start) for run in named)
    return common(rows, (grid.rows,))


def groups_apart(pattern: Pattern, grid: Grid, apart: Ranges, budget: Budget) -> tuple[Group, ...]:
    """The rows apart, gathered a few hundred at a time."""
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
    """Some rows apart over all keys that one of them may look at."""
    schedule = schedule_of(pattern, grid, grid.q_len)
    blocks = [schedule.block_of(one) for one in rows]
    keys = union(run.keys for block in blocks for run in block.runs)
    whole = all(covers(union(block.full), run) for block in blocks for run in keys)
    return Group(rows, keys, whole, members=() if len(rows) == len(keys) == 1 else ((rows, keys),))


@dataclass(frozen=True)
class Residue:
    """The positions of one residue, counted by n: queries from `start`, keys from `first_key`, and the pattern on them.

    Its first query is row `row` of the whole grid, and its first key stands `key` behind the grid's first.
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
        """The neighbour this many rows on, if it is equal."""
        return replace(self, row=self.row + by, key=self.key + by)


def on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms) -> tuple[Residues, ...]:
    """The pattern on each residue of a stride, equal neighbours together."""
    alike: list[tuple[Residue, int]] = []
    for rows in alike_residues(pattern, stride, grid):
        terms.budget.spend()
        residue = residue_at(pattern, stride, grid, rows.start)
        if residue is None:
            continue
        first, count = alike[-1] if alike else (residue, 0)
        if count and residue == first.moved(count):
            alike[-1] = first, count + len(rows)
        else:
            alike.append((residue, len(rows)))
    return tuple(_lowered(one, count, stride, terms.farther(stride)) for one, count in alike)


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
    """Without the first empty rows and the last hidden keys of a pattern open to the left; None if none is left."""
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
    """Is all of it computed with a mask, rather than the pairs of its program?"""
    dense = residue.size * residue.width
    return dense <= RESIDUE_PAIRS and dense <= 4 * pairs
