"""A pattern divided into row blocks with runs of keys, and its evaluation for blocks of pairs.

A row block is some neighbouring rows (queries) with the runs of keys that one of them may look at. All
division of a pattern into blocks uses this module: counts and tiles of patterns, and the schedules of backends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from operator import attrgetter

import torch

from regard.patterns.algebra import NOTHING, Full, Many, Not
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, common, covers, meets, shifted, without

ROWS = 64  # of a row block, where a pattern is counted or its visible keys are looked for


class RunKind(IntEnum):
    """Which keys of a run the rows of a block may look at.

    WHOLE: every row at every key. BOUNDED: row i at the keys lo_i <= j < hi_i. BITS: a bit for each pair.
    """

    WHOLE = 0
    BOUNDED = 1
    BITS = 2


@dataclass(frozen=True)
class Run:
    """Neighbouring keys of a row block."""

    keys: range
    kind: RunKind


@dataclass(frozen=True)
class RowBlock:
    """Neighbouring rows with disjoint ascending runs of keys, which contain every allowed pair of these rows.

    With `times` > 1 it represents that many equal blocks, each `len(rows)` rows and keys further than the one before.

    >>> RowBlock(range(4), (Run(range(2, 8), RunKind.BOUNDED),), times=3).pairs
    72
    """

    rows: range
    runs: tuple[Run, ...]
    times: int = 1

    @cached_property
    def full(self) -> Ranges:
        """The keys that every row may look at."""
        full: list[range] = []
        for run in self.runs:
            if run.kind == RunKind.WHOLE:
                full.append(run.keys)
        return tuple(full)

    @property
    def partial(self) -> Ranges:
        """The other keys."""
        return tuple(run.keys for run in self.runs if run.kind != RunKind.WHOLE)

    @cached_property
    def hull(self) -> range:
        """From the first key to the last, gaps between the runs included."""
        if not self.runs:
            return range(0)
        return range(self.runs[0].keys.start, self.runs[-1].keys.stop)

    @cached_property
    def width(self) -> int:
        """Keys in the runs."""
        width = 0
        for run in self.runs:
            width += len(run.keys)
        return width

    @property
    def pairs(self) -> int:
        """Pairs of all blocks that it represents, allowed or not."""
        return self.times * len(self.rows) * self.width

    def moved(self, by: int) -> RowBlock:
        """The block with rows and keys moved."""
        runs = tuple(Run(shifted(run.keys, by), run.kind) for run in self.runs)
        return RowBlock(shifted(self.rows, by), runs, self.times)

    def each(self) -> Iterator[RowBlock]:
        """The blocks that it represents, one by one."""
        once = self if self.times == 1 else replace(self, times=1)
        yield once
        for number in range(1, self.times):
            yield once.moved(number * len(self.rows))


def row_block(
    pattern: Pattern, rows: range, starts: tuple[int, int], k_len: int, keys: range
) -> RowBlock:
    """The row block of these rows.

    Args:
        pattern: the same for all batch rows and heads.
        rows: neighbouring rows.
        starts: the least and the largest position of row 0, where batch rows differ; else the same number twice.
        k_len: how many keys there are.
        keys: the keys that some row may look at; runs are limited to them.

    >>> from regard.patterns import Causal
    >>> for run in row_block(Causal(), range(4, 8), (0, 0), 99, range(99)).runs:
    ...     print(run.keys, run.kind.name)
    range(0, 5) WHOLE
    range(5, 8) BOUNDED
    """
    segments = pattern.segments(starts[0] + rows.start, starts[1] + rows.stop - 1, k_len)
    full = segments.full
    some = segments.some
    if len(keys) < k_len:
        full = common(full, (keys,))
        some = common(some, (keys,))
    partial = without(some, full) if full else some

    runs: list[Run] = []
    for seen in full:
        runs.append(Run(seen, RunKind.WHOLE))
    if partial:
        in_bounds = pattern.known_band is not None and starts[0] == starts[1]
        kind = RunKind.BOUNDED if in_bounds else RunKind.BITS
        for seen in partial:
            runs.append(Run(seen, kind))
    return RowBlock(rows, ascending(runs) if full and partial else tuple(runs))


def ascending(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Disjoint runs in the order of their keys."""
    return tuple(sorted(runs, key=attrgetter("keys.start")))


def in_row_blocks(pattern: Pattern, grid: Grid, rows: int = ROWS) -> Iterator[RowBlock]:
    """The rows of a grid in row blocks of `rows`, the last one perhaps shorter."""
    start = grid.q_start
    assert isinstance(start, int)
    for first in range(grid.rows.start, grid.rows.stop, rows):
        block = range(first, min(first + rows, grid.rows.stop))
        yield row_block(pattern, block, (start, start), grid.k_len, range(grid.k_len))


def narrowed(pattern: Pattern, first: int, last: int, keys: range, k_len: int) -> Pattern:
    """A pattern with the same pairs of the queries at first..last and `keys`, without the parts that decide nothing.

    >>> from regard.patterns import Causal, KeySpan, SlidingWindow
    >>> print(narrowed(SlidingWindow(8) | (Causal() & KeySpan(0, 10)), 50, 60, range(45, 65), 99))
    sliding_window(8)
    """
    seen = pattern.segments(first, last, k_len)
    if covers(seen.full, keys):
        return Full()
    if not meets(seen.some, keys):
        return NOTHING
    simpler = pattern.structure()
    if simpler is not pattern:
        return narrowed(simpler, first, last, keys, k_len)
    if isinstance(pattern, Many | Not):
        return pattern.mapped(lambda part: narrowed(part, first, last, keys, k_len))
    return pattern


@dataclass
class EvaluatedBlocks:
    """A pattern evaluated for blocks of pairs, each once: blocks that it does not distinguish share their pairs."""

    pattern: Pattern
    grid: Grid
    known: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple[range, range], Hashable] = field(default_factory=dict)

    def identity(self, rows: range, keys: range) -> Hashable:
        """Equal for blocks with equal pairs; None where nothing is known to be equal."""
        assert isinstance(self.grid.q_start, int)
        first = self.grid.q_start + rows.start
        left = narrowed(self.pattern, first, first + len(rows) - 1, keys, self.grid.k_len)
        if not left.by_value or left.period is None:
            return None
        distance = keys.start - first
        if left.key_period is not None:
            distance %= left.key_period
        return left, len(rows), distance, len(keys), first % left.period

    def allowed(self, rows: range, keys: range) -> torch.Tensor:
        """Which pairs are allowed, (rows, keys)."""
        place = rows, keys
        if place not in self.names:
            self.names[place] = self.identity(rows, keys)
        name = self.names[place]
        if name is None:
            return self.pattern.evaluate(self.grid.block(rows, keys))
        if name not in self.known:
            self.known[name] = self.pattern.evaluate(self.grid.block(rows, keys))
        return self.known[name]
