"""Divides the scores of a problem into blocks that fit the cache: row blocks of its schedule, then keys and heads.

A score block has some rows, some keys of a run, and a lot: a set of heads. All sizes are chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from regard.backends.schedule import Schedule
from regard.core.problem import PER_ROW, Problem
from regard.patterns.row_blocks import RowBlock, Run, RunKind

ROWS = 256  # of a row block, counted over all query heads of a group
PAIRS = 1 << 17  # of a score block on CPU: 512 KiB in float32, in each of two or three workspaces
PAIRS_ELSEWHERE = 1 << 22  # on other devices, where launches cost more than memory
ALIGNED = 64  # keys; runs begin at multiples of it, so that rows of scores are aligned in memory
SAMPLED = 256  # row blocks of the sample from which the cost of longer problems is estimated


@dataclass(frozen=True)
class Lot:
    """Some batch rows with all their key/value heads, or some key/value heads of one batch row."""

    batch: slice
    kv_heads: slice


@dataclass(frozen=True)
class ScoreBlock:
    """Some rows and keys of a lot of heads; `hidden` is -inf where the pattern masks a pair and 0 elsewhere."""

    rows: range
    keys: range
    number: int  # index of the lot
    lot: Lot
    shape: tuple[int, int, int, int]  # batch, heads, rows, keys
    kv_heads: int
    columns: slice  # of the keys among the operands' keys
    hidden: torch.Tensor | None
    may_hide: bool  # whether scores may be -inf, by the pattern, the bias or a centre

    @property
    def units(self) -> tuple[int, int, int]:
        """The shape as (units, lines, keys): batch rows x key/value heads, query heads of a group x rows, keys."""
        batch, heads, rows, keys = self.shape
        return batch * self.kv_heads, heads // self.kv_heads * rows, keys

    @property
    def heads(self) -> slice:
        group = self.shape[1] // self.kv_heads
        return slice(self.lot.kv_heads.start * group, self.lot.kv_heads.stop * group)

    @property
    def lines(self) -> tuple[slice, slice, slice]:
        """Index of the rows in (batch, heads, q_len, ...)."""
        return self.lot.batch, self.heads, slice(self.rows.start, self.rows.stop)

    def place(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Index of the block in (batch or 1, heads or 1, q_len or 1, keys or 1)."""
        by_axis = zip(shape, (*self.lines, self.columns), strict=True)
        return tuple(slice(None) if size == 1 else index for size, index in by_axis)

    def of(self, mask: torch.Tensor) -> torch.Tensor:
        """The block's heads of a mask (batch or 1, heads or 1, rows, keys)."""
        return mask[self.place((*mask.shape[:2], 1, 1))]


class Workspace:
    """Memory that is reused for one score block after the other."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._views: dict[tuple[int, ...], torch.Tensor] = {}

    def shaped(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The beginning of the memory, as a tensor of this shape."""
        view = self._views.get(shape)
        if view is None:
            view = self._views[shape] = self._memory[: math.prod(shape)].view(shape)
        return view


@dataclass(frozen=True)
class BlockCounts:
    """The numbers of computed pairs and of score blocks; `exact` is False if they are estimated from a sample."""

    pairs: int
    blocks: int
    exact: bool


@dataclass(frozen=True)
class Blocking:
    """How large row blocks, score blocks and lots of heads of a problem are."""

    problem: Problem
    rows: int
    keys: int
    pairs: int  # the most pairs of a score block, unless one head needs more

    def schedule(self, starts: tuple[int, int] | None) -> Schedule:
        """The schedule for the least and the largest q_start of the batch rows, or None if they are not known yet."""
        return replace(Schedule.of_problem(self.problem, self.rows, ALIGNED), starts=starts)

    def row_blocks(
        self, starts: tuple[int, int] | None, rows: Iterable[range] | None = None
    ) -> Iterator[RowBlock]:
        """Row blocks in the order of their rows, with runs of at most `keys` keys.

        Args:
            starts: as in `schedule`.
            rows: those to cover; all of them by default.
        """
        schedule = self.schedule(starts)
        covered = [range(self.problem.q_len)] if rows is None else rows
        for some in covered:
            for first in range(0, len(some), self.rows):
                block = schedule.block_of(some[first : first + self.rows])
                runs: list[Run] = []
                for run in block.runs:
                    runs += self._divide(run)
                yield replace(block, runs=tuple(runs))

    @property
    def lots(self) -> list[Lot]:
        """All heads, divided into lots that fit."""
        batch = self.problem.batch
        kv_heads = self.problem.kv_heads
        lots = []
        if self._fitting_heads >= kv_heads:
            for rows in _slices(batch, self._fitting_heads // kv_heads):
                lots.append(Lot(rows, slice(0, kv_heads)))
            return lots
        for row in range(batch):
            for heads in _slices(kv_heads, self._fitting_heads):
                lots.append(Lot(slice(row, row + 1), heads))
        return lots

    @property
    def lot_count(self) -> int:
        batch = self.problem.batch
        kv_heads = self.problem.kv_heads
        if self._fitting_heads >= kv_heads:
            return -(-batch // (self._fitting_heads // kv_heads))
        return batch * -(-kv_heads // self._fitting_heads)

    @property
    def _fitting_heads(self) -> int:
        """Key/value heads of a lot; if they are more than a batch row has, a lot has several batch rows."""
        return max(1, self.pairs // (self.rows * self.problem.group * self.keys))

    @property
    def largest(self) -> int:
        """Pairs in the largest score block."""
        batch = self.problem.batch
        kv_heads = self.problem.kv_heads
        if not batch:
            return 0
        if self._fitting_heads >= kv_heads:
            units = min(self._fitting_heads // kv_heads, batch) * kv_heads
        else:
            units = self._fitting_heads
        return units * self.problem.group * self.rows * self.keys

    def size(self) -> BlockCounts:
        """Pairs computed over all heads, and the number of score blocks; estimated from a sample if there are many."""
        problem = self.problem
        schedule = self.schedule(known_starts(problem))
        count = -(-problem.q_len // self.rows)
        if not count:
            return BlockCounts(pairs=0, blocks=0, exact=True)

        sample = range(0, count, -(-count // SAMPLED))
        pairs = 0
        blocks = 0
        for number in sample:
            row_block = schedule.block_at(number * self.rows)
            pairs += row_block.pairs
            blocks += sum(-(-len(run.keys) // self.keys) for run in row_block.runs)

        share = count / len(sample)
        heads = problem.batch * problem.heads
        return BlockCounts(
            pairs=round(share * pairs) * heads,
            blocks=round(share * blocks) * self.lot_count,
            exact=len(sample) == count,
        )

    def _divide(self, run: Run) -> list[Run]:
        """The run in parts of at most `keys` keys."""
        parts = _slices(len(run.keys), self.keys)
        return [Run(run.keys[part], run.kind) for part in parts]


def _slices(length: int, size: int) -> list[slice]:
    """Slices of at most this size that cover a length."""
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def blocking_of(problem: Problem, wide: bool = False, pairs: int | None = None) -> Blocking:
    """Sizes for a problem; `wide` takes fewer rows and more keys, for work that is done once for each row of a block.

    A score block has about `pairs` pairs; by default as many as stay in the cache.
    """
    if pairs is None:
        pairs = PAIRS if problem.device == "cpu" else PAIRS_ELSEWHERE
    rows = (ROWS // 2 if wide else ROWS) // problem.group
    rows = max(1, min(rows, problem.q_len))
    keys = max(ALIGNED, pairs // (rows * problem.group) // ALIGNED * ALIGNED)
    keys = max(1, min(keys, problem.k_len))
    return Blocking(problem, rows, keys, pairs)


def known_starts(problem: Problem) -> tuple[int, int] | None:
    """The least and largest q_start of the batch rows; None if the problem does not contain them."""
    if problem.q_start is PER_ROW:
        return None
    return problem.q_start, problem.q_start


def is_whole(run: Run) -> bool:
    """Whether every row of the block may look at all keys of the run."""
    return run.kind == RunKind.WHOLE
