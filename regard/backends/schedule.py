"""A schedule is a pattern in the form that backends compute. Three words describe it:

    schedule    the row blocks of one pattern, for the block size and alignment of keys that a backend needs
    row block   neighbouring rows (queries), with the runs of keys that one of them may look at
    run         neighbouring keys of a row block: WHOLE, every row may look at all of it; BOUNDED, row i at the keys
                lo_i <= key < hi_i of it (causal edges, windows, prefixes, documents); BITS, a bit for each pair

The runs of a row block are disjoint and ascending, and together they contain every allowed pair of its rows. A schedule
is made without reading a tensor. It is iterated, not stored. Equal consecutive blocks are one block with a number of
`times`, so a window over a million rows has only a few row blocks. `arrays` writes a schedule as int32 arrays, as a
native kernel reads it. Fused, tiled, streamed, decode and flex compute schedules or views of them; `strict_refusal` is
the one check behind `strict=True`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch

from regard.arguments import count_of
from regard.core.backend import Offer, Refusal
from regard.core.problem import MOST_DIVIDED, PER_ROW, Problem
from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, shifted, without
from regard.patterns.row_blocks import EvaluatedBlocks, RowBlock, Run, RunKind, ascending, row_block

LEAST_ROWS = 16  # of a row block that is shortened because its mask would be too large
# Rows of a row block of a pattern that is no band, whose runs several backends ask for; more rows share few keys there.
SHARED_ROWS = 64
MOST_SHARED = 1 << 14  # queries of a problem that keeps its row blocks


@dataclass(frozen=True)
class Schedule:
    """The row blocks of a pattern. If the pattern differs between batch rows or heads, all runs are BITS.

    Args:
        pattern: which pairs are allowed.
        q_len: rows.
        k_len: keys of the whole call.
        starts: the least and the largest position of row 0 over the batch rows; None if they are unknown, so that every
            row block has one run of BITS.
        keys: the range of keys that some row may look at; runs are limited to it.
        rows: rows of a row block; the last one may be shorter.
        align: WHOLE runs begin and end at multiples of it if another run follows, and narrower gaps are closed.
        most: limit to the pairs between the first and the last key of a row block; above it a block gets fewer rows,
            but at least 16.
    """

    pattern: Pattern
    q_len: int
    k_len: int
    starts: tuple[int, int] | None
    keys: range
    rows: int
    align: int = 1
    most: int | None = None

    @classmethod
    def of(
        cls,
        pattern: Pattern,
        q_len: int,
        k_len: int,
        q_start: int | None = None,
        *,
        rows: int,
        align: int = 1,
    ) -> Schedule:
        """The schedule of a pattern; by default the last query is aligned with the last key."""
        start = k_len - q_len if q_start is None else q_start
        return cls(pattern, q_len, k_len, (start, start), range(k_len), rows, align)

    @classmethod
    def of_problem(
        cls, problem: Problem, rows: int, align: int = 1, most: int | None = None
    ) -> Schedule:
        starts = None if problem.q_start is PER_ROW else (problem.q_start, problem.q_start)
        return cls(
            problem.pattern,
            problem.q_len,
            problem.k_len,
            starts,
            problem.reachable_keys,
            rows,
            align,
            most,
        )

    def __iter__(self) -> Iterator[RowBlock]:
        """The row blocks in the order of their rows; equal consecutive blocks as one with a number of `times`."""
        row = 0
        while row < self.q_len:
            block = self.block_at(row)
            times = self._repetitions(block)
            if times > 1:
                block = replace(block, times=times)
            yield block
            row += block.times * len(block.rows)

    def block_at(self, row: int) -> RowBlock:
        """The row block whose first row this is, with `times` 1."""
        block = self.block_of(range(row, min(self.q_len, row + self.rows)))
        if self.most is None or len(block.rows) * len(block.hull) <= self.most:
            return block
        fitting = max(LEAST_ROWS, self.most // len(block.hull))
        return self.block_of(block.rows[:fitting])

    def block_of(self, rows: range) -> RowBlock:
        """These rows as one row block; there may be any number of rows."""
        if self.starts is None:
            runs = (Run(self.keys, RunKind.BITS),) if self.keys else ()
            return RowBlock(rows, runs)
        block = row_block(self.pattern, rows, self.starts, self.k_len, self.keys)
        return block if self.align == 1 else aligned(block, self.align)

    @property
    def whole(self) -> RowBlock:
        return self.block_of(range(self.q_len))

    @property
    def pairs(self) -> int:
        """Pairs in the runs of all row blocks, allowed or not."""
        return sum(block.pairs for block in self)

    def arrays(self) -> Arrays:
        return _ArrayWriter(self).write()

    def _repetitions(self, block: RowBlock) -> int:
        """How often a row block repeats, itself included, as far as the pattern's structure shows it."""
        size = len(block.rows)
        more = (self.q_len - block.rows.stop) // size
        if more < 1 or not block.runs:
            return 1
        if self.starts is None or self.starts[0] != self.starts[1]:
            return 1

        # The limit by the number of keys comes first, since the checks below cost more.
        more = min(more, (self._last_key_end - block.hull.stop) // size)
        if more < 1 or size % self.align:
            return 1
        if not self._can_move(size) or not self._is_interior(block):
            return 1
        return 1 + more

    @cached_property
    def _last_key_end(self) -> int:
        """One past the last key that a later block can reach."""
        band = self.pattern.known_band
        if band is None or band.stop is None:
            return self.keys.stop
        return min(band.stop, self.keys.stop)

    def _can_move(self, by: int) -> bool:
        """Whether the pattern stays the same, except at the ends of the keys, if queries and keys move by this much."""
        band = self.pattern.known_band
        if band is not None:
            return band.left is not None and band.right is not None
        period = self.pattern.period
        return period is not None and by % period == 0 and not self.pattern.by_length

    def _is_interior(self, block: RowBlock) -> bool:
        """Whether the keys of a row block are not cut off at either end, so that later equal blocks have the same runs.

        For a band this follows from its limits. Other patterns are evaluated again far from both ends, where a run that
        is cut off here would be visible.
        """
        assert self.starts is not None
        first = self.starts[0] + block.rows.start
        last = self.starts[0] + block.rows.stop - 1
        band = self.pattern.known_band
        if band is not None:
            assert band.left is not None
            assert band.right is not None
            return block.hull == range(first - band.left, last + band.right + 1)
        period = self.pattern.period
        assert period is not None
        distance = -(-(self.q_len + self.k_len) // period) * period
        k_len = self.k_len + 2 * distance
        start = self.starts[0] + distance
        far = row_block(self.pattern, block.rows, (start, start), k_len, range(k_len))
        near = row_block(self.pattern, block.rows, self.starts, self.k_len, self.keys)
        if len(far.runs) != len(near.runs):
            return False
        for away, run in zip(far.runs, near.runs, strict=True):
            if away.kind != run.kind or away.keys != shifted(run.keys, distance):
                return False
        return True


def shared_row_blocks(problem: Problem) -> list[RowBlock] | None:
    """The row blocks of `SHARED_ROWS` rows, which the problem keeps, so that its pattern is asked once.

    None for many queries, whose row blocks would take much memory.
    """
    return problem.once(_row_blocks) if problem.q_len <= MOST_SHARED else None


def _row_blocks(problem: Problem) -> list[RowBlock]:
    return list(Schedule.of_problem(problem, SHARED_ROWS))


def strict_refusal(problem: Problem, pairs: int) -> Refusal | None:
    """Why computing this many pairs, of all batch rows and heads, is more than `strict=True` allows, or None."""
    if not problem.strict:
        return None
    kept = _kept_pairs(problem)
    if kept is None:
        return Refusal(
            f"strict=True, and how many of its {count_of(pairs, 'pairs')} {problem.pattern} keeps "
            "is unknown without evaluating them"
        )
    if pairs <= 2 * kept:
        return None
    return Refusal(
        f"strict=True, and it computes {count_of(pairs, 'pairs')} where {kept} are kept, more than twice as many"
    )


def strictly(problem: Problem, offer: Offer) -> Offer | Refusal:
    """The offer, unless it computes more pairs than `strict=True` allows."""
    if not problem.strict:
        return offer
    return strict_refusal(problem, offer.cost.pairs) or offer


def _kept_pairs(problem: Problem) -> int | None:
    """The allowed pairs of all batch rows and heads; None where the structure of the pattern does not give them."""
    pattern = problem.pattern
    if not pattern.varies_by_row:
        return problem.counted
    pairs = 0
    for row in range(problem.batch):
        of_row = replace(problem, batch=1, pattern=pattern.for_row(row)).counted
        if of_row is None:
            return None
        pairs += of_row
    return pairs


def pairs_of_long_band(problem: Problem, rows: int, width: int) -> int | None:
    """About how many pairs of one head lie in the blocks of `rows` by `width` that a band reaches; no block is made.

    None for other patterns, for calls that are run, and for rows that are few enough to divide them into blocks.
    """
    band = problem.pattern.known_band
    q_len = problem.q_len
    if not problem.outlined or q_len <= MOST_DIVIDED or band is None or problem.q_start is PER_ROW:
        return None
    sides = (band.left is not None) + (band.right is not None)
    beyond_band = q_len * sides * (rows + width) // 2
    pairs = band.count(problem.q_start, q_len, problem.k_len) + beyond_band
    return min(q_len * len(problem.reachable_keys), pairs)


def aligned(block: RowBlock, align: int) -> RowBlock:
    """The row block with WHOLE runs cut to multiples of `align`, and other runs joined if their gap is narrower.

    An end of a WHOLE run is not cut if no other run follows.
    """
    seen = joined(tuple([run.keys for run in block.runs]))
    ends = {keys.start for keys in seen} | {keys.stop for keys in seen}
    cut = []
    for keys in block.full:
        start = keys.start if keys.start in ends else -(-keys.start // align) * align
        stop = keys.stop if keys.stop in ends else keys.stop // align * align
        if start < stop:
            cut.append(range(start, stop))
    whole = tuple(cut)

    kinds = [run.kind for run in block.runs if run.kind != RunKind.WHOLE]
    kind_of_rest = kinds[0] if kinds else RunKind.BITS  # those of a row block are of one kind
    rest = without(joined(without(seen, whole), align), whole)
    runs = [Run(keys, RunKind.WHOLE) for keys in whole]
    runs += [Run(keys, kind_of_rest) for keys in rest]
    return replace(block, runs=ascending(runs))


def joined(ranges: Ranges, gap: int = 1) -> Ranges:
    """Sorted ranges, with neighbours that are less than `gap` apart joined into one.

    >>> joined((range(0, 3), range(3, 5), range(9, 12)), gap=5)
    (range(0, 12),)
    """
    merged: list[range] = list(ranges[:1])
    for before, keys in pairwise(ranges):
        if keys.start - before.stop < gap:
            merged[-1] = range(merged[-1].start, keys.stop)
        else:
            merged.append(keys)
    return tuple(merged)


@dataclass(frozen=True, eq=False)
class Arrays:
    """A schedule as int32 arrays, the form for native kernels.

    blocks: (row blocks, 4): first row, end of rows, first run, end of runs.
    runs: (runs, 4): first key, end of keys, kind (0 WHOLE, 1 BOUNDED, 2 BITS), place.
    lo, hi: (numbers,): row r of a BOUNDED run may look at the keys lo[place + r] <= key < hi[place + r].
    bits: (words,): row r of a BITS run has words place + r · n to place + (r + 1) · n with n = ceil(keys / 32); bit
        k % 32 of word k // 32 is set where the row may look at the k-th key of the run.

    Rows r are counted from the first row of the block.
    """

    blocks: torch.Tensor
    runs: torch.Tensor
    lo: torch.Tensor
    hi: torch.Tensor
    bits: torch.Tensor


@dataclass(frozen=True)
class _RunData:
    """A run whose pairs were evaluated: its bounds (2, rows) or its words; None where it is WHOLE."""

    keys: range
    kind: RunKind
    data: torch.Tensor | None


@dataclass
class _ArrayWriter:
    """Writes row blocks one after the other into lists of numbers and tensors."""

    schedule: Schedule
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    bounds: list[torch.Tensor] = field(default_factory=list)  # (2, rows) each
    words: list[torch.Tensor] = field(default_factory=list)
    bounds_end: int = 0
    words_end: int = 0

    def __post_init__(self) -> None:
        schedule = self.schedule
        if schedule.starts is None or schedule.starts[0] != schedule.starts[1]:
            raise ArgumentError(
                "batch rows start at different positions, so their schedules differ; write one for each batch row"
            )
        grid = Grid.whole(schedule.q_len, schedule.k_len, schedule.starts[0])
        self.evaluated = EvaluatedBlocks(schedule.pattern, grid)

    def write(self) -> Arrays:
        for block in self.schedule:
            runs = [self._evaluate(block.rows, run) for run in block.runs]
            for time in range(block.times):
                self._write_block(block, runs, time * len(block.rows))
        no_bounds = torch.zeros(2, 0, dtype=torch.int64, device="cpu")
        no_words = torch.zeros(0, dtype=torch.int32, device="cpu")
        lo, hi = torch.cat([no_bounds, *self.bounds], 1).int()
        bits = torch.cat([no_words, *self.words])
        return Arrays(_table(self.blocks), _table(self.runs), lo, hi, bits)

    def _evaluate(self, rows: range, run: Run) -> _RunData:
        """A run with the kind that its pairs have."""
        if run.kind == RunKind.WHOLE:
            return _RunData(run.keys, run.kind, None)
        allowed = self.evaluated.allowed(rows, run.keys)
        if allowed.dim() == 4:  # of one batch row and head
            allowed = allowed[0, 0]  # (rows, keys)

        count = allowed.sum(-1)
        first = allowed.int().argmax(-1)
        last = allowed.shape[1] - allowed.flip(-1).int().argmax(-1)
        # A row whose pairs have no gap is as long as it has pairs.
        length = torch.where(count > 0, last - first, 0)
        if torch.equal(length, count):
            bounds = torch.stack([first, first + count]) + run.keys.start
            return _RunData(run.keys, RunKind.BOUNDED, bounds)
        return _RunData(run.keys, RunKind.BITS, packed(allowed))

    def _write_block(self, block: RowBlock, runs: list[_RunData], by: int) -> None:
        """Append a row block and its runs, moved by this many rows and keys."""
        first_run = len(self.runs)
        for run in runs:
            place = self._append_data(run, by)
            self.runs.append((run.keys.start + by, run.keys.stop + by, run.kind, place))
        rows = block.rows
        self.blocks.append((rows.start + by, rows.stop + by, first_run, len(self.runs)))

    def _append_data(self, run: _RunData, by: int) -> int:
        """The place of a run's bounds or words, which are appended."""
        if run.data is None:
            return 0
        if run.kind == RunKind.BOUNDED:
            place = self.bounds_end
            self.bounds_end += run.data.shape[1]
            self.bounds.append(run.data + by)
            return place
        place = self.words_end
        self.words_end += len(run.data)
        self.words.append(run.data)
        return place


def packed(allowed: torch.Tensor) -> torch.Tensor:
    """Booleans (rows, keys) as int32 words, row after row, the first key in the lowest bit.

    >>> packed(torch.tensor([[True, False, True], [False, True, False]])).tolist()
    [5, 2]
    """
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32))
    bits = padded.unflatten(-1, (-1, 32))
    values = 2 ** torch.arange(32, device=allowed.device)
    # In int32 the highest bit becomes the sign.
    return (bits * values).sum(-1).flatten().to(torch.int32)


def _table(rows: list[tuple[int, int, int, int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32, device="cpu").view(-1, 4)
