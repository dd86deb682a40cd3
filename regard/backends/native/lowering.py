"""Lowers a problem to the schedules that the kernel reads: one for each pattern that a batch row or head has.

A band is lowered without evaluating a pair: each row block has one run with the bounds of every row. So are lists of
blocks of keys within a band: where many rows share large blocks, with a run for each; else the kernel reads the lists
themselves, and each key where it lies. Other patterns are lowered by `Schedule.arrays`.

The panels in which the kernel adds up keys begin at the first key that any query of a text could look at, wherever
this call begins, so that a continued text and a padded one get equal bits.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.backends.native.bands import RowBand, entry_of, row_band_of, row_band_of_problem
from regard.backends.native.library import MOST_ROWS, CLists, CSchedule, CWindows
from regard.backends.schedule import SHARED_ROWS, Arrays, Schedule
from regard.core.problem import Problem
from regard.patterns import Pattern
from regard.patterns.algebra import both
from regard.patterns.chosen import LEAST_LISTED, Chosen, placed_lists
from regard.patterns.row_blocks import RunKind


@dataclass(frozen=True, eq=False)
class Lowered:
    """The schedules of a call, as arrays and as the structs that point at them.

    schedules: the different ones, with the origin of their panels. schedule_of: (batch, heads) int32, which schedule;
    None if all batch rows and heads have the first. lists: a CLists in place of schedules, and what it points at.
    windows: the address of a CWindows likewise.
    """

    schedules: list[tuple[Arrays, int]]
    schedule_of: torch.Tensor | None
    lists: tuple[CLists, tuple[torch.Tensor, ...]] | None = None
    windows: int | None = None
    structs: Any = field(init=False, repr=False)  # the array of rg_schedule

    # The structs are made here and not when they are first read, which two threads could do at once.
    def __post_init__(self) -> None:
        structs = (CSchedule * len(self.schedules))()
        for number, (arrays, origin) in enumerate(self.schedules):
            structs[number] = _struct_of(arrays, origin)
        object.__setattr__(self, "structs", structs)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.structs)

    @property
    def schedule_count(self) -> int:
        return len(self.schedules)

    @property
    def nbytes(self) -> int:
        total = 0
        for arrays, _ in self.schedules:
            tensors = (arrays.blocks, arrays.runs, arrays.lo, arrays.hi, arrays.bits)
            total += sum(x.nbytes for x in tensors)
        if self.lists is not None:
            _, tensors_of_lists = self.lists
            total += sum(x.nbytes for x in tensors_of_lists)
        return total


class LoweredWindows:
    """Windows that divide the positions of a call, in place of schedules.

    Args:
        positions: of windows of one size, int64 (windows, cells), for each size. Windows of equal distances follow
            each other, since the kernel keeps the numbers of a bias for the next window of the same distances.
    """

    def __init__(self, positions: list[torch.Tensor]) -> None:
        sizes = [torch.full((len(x),), x.shape[1], device="cpu") for x in positions]
        counts = torch.cat(sizes)
        first = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        cells = torch.cat([x.flatten() for x in positions]).int()
        self._arrays = first, cells  # the struct points at them
        self._struct = CWindows(windows=len(counts), first=first.data_ptr(), cell=cells.data_ptr())
        self.pairs = int(counts.square().sum())  # of one batch row and head
        self.lowered = Lowered([], None, windows=ctypes.addressof(self._struct))


def _struct_of(arrays: Arrays, origin: int) -> CSchedule:
    return CSchedule(
        blocks=arrays.blocks.shape[0],
        runs=arrays.runs.shape[0],
        bounds=arrays.lo.shape[0],
        words=arrays.bits.shape[0],
        origin=origin,
        block=arrays.blocks.data_ptr(),
        run=arrays.runs.data_ptr(),
        lo=arrays.lo.data_ptr(),
        hi=arrays.hi.data_ptr(),
        bits=arrays.bits.data_ptr(),
    )


def lower(problem: Problem, keys: range, starts: list[int], backward: bool = False) -> Lowered:
    """The schedules of a problem.

    Args:
        problem: the call.
        keys: those that the tensors of the call hold.
        starts: the position of the first query in each batch row, or in all of them.
        backward: for the backward pass, which reads lists row by row alone.
    """
    batch = problem.batch
    heads = problem.heads
    band = row_band_of_problem(problem)
    if band is not None:
        schedules = band_schedules(band, starts, problem.q_len, keys)
        if len(schedules) == 1:
            return Lowered(schedules, None)
        rows = torch.arange(len(schedules), dtype=torch.int32, device="cpu")[:, None]
        return Lowered(schedules, rows.expand(batch, heads).contiguous())
    lists = lists_to_read(problem)
    if lists is not None and not (backward and lists.in_tiles):
        return lists.as_read(starts, problem.q_len, keys)
    return _lower_by_pairs(problem, keys, starts)


def _lower_by_pairs(problem: Problem, keys: range, starts: list[int]) -> Lowered:
    """One schedule for each pattern and first position that a batch row and head has."""
    pattern = problem.pattern
    rows = problem.batch if pattern.varies_by_row or len(starts) > 1 else 1
    heads = problem.heads if pattern.varies_by_head else 1
    schedules = []
    number_of: dict[tuple[Pattern, int], int] = {}
    numbers = []  # of the schedule of each batch row and head
    for row in range(rows):
        pattern_of_row = pattern.for_row(row).canonical() if pattern.varies_by_row else pattern
        start = entry_of(row, starts)
        for head in range(heads):
            pattern_of_head = pattern_of_row
            if pattern.varies_by_head:
                pattern_of_head = pattern_of_row.for_head(head).canonical()
            name = pattern_of_head, start
            if name not in number_of:
                number_of[name] = len(schedules)
                schedules.append(_schedule(problem, pattern_of_head, start, keys))
            numbers.append(number_of[name])
    if len(schedules) == 1:
        return Lowered(schedules, None)
    schedule_of = torch.tensor(numbers, dtype=torch.int32, device="cpu").view(rows, heads)
    return Lowered(schedules, schedule_of.expand(problem.batch, problem.heads).contiguous())


def _schedule(problem: Problem, pattern: Pattern, start: int, keys: range) -> tuple[Arrays, int]:
    """The schedule of one batch row and head, and the origin of its panels."""
    q_len = problem.q_len
    k_len = problem.k_len
    band = row_band_of(pattern)
    if band is not None:
        (schedule,) = band_schedules(band, [start], q_len, keys)
        return schedule
    lists = lists_to_lower(pattern)
    if lists is not None:
        return lists.arrays(start, q_len, keys)
    origin = min(pattern.key_range(0, k_len - 1, k_len).start, keys.stop)
    return Schedule(pattern, q_len, k_len, (start, start), keys, SHARED_ROWS).arrays(), origin


def band_schedules(
    band: RowBand, starts: list[int], q_len: int, keys: range
) -> list[tuple[Arrays, int]]:
    """The schedule of each batch row, and the origin of its panels.

    The row blocks have the most rows, and each has one run with the bounds of its rows.
    """
    alone = band.bounds_of_one_query(starts, q_len, keys)
    if alone is not None:
        low, high = alone
        has_keys = 1 if low < high else 0
        arrays = Arrays(
            blocks=_int32([[0, 1, 0, has_keys]]),
            runs=_int32([[low, high, int(RunKind.WHOLE), 0]]),
            lo=_int32([low]),
            hi=_int32([high]),
            bits=_int32([]),
        )
        return [(arrays, band.origin(0, keys.stop))]

    lo, hi = band.bounds(starts, q_len, keys)
    lo = lo.int().contiguous()
    hi = hi.int().contiguous()
    first_rows = torch.arange(0, q_len, MOST_ROWS, dtype=torch.int32, device="cpu")
    end_rows = (first_rows + MOST_ROWS).clamp(max=q_len)
    numbers = torch.arange(first_rows.shape[0], dtype=torch.int32, device="cpu")

    # Both bounds grow with the row, so the first and the last row of a block hold those of all: (batch rows, blocks).
    low = lo[:, first_rows]
    high = hi[:, end_rows - 1]
    whole = (low == lo[:, end_rows - 1]) & (hi[:, first_rows] == high)
    kind = torch.where(whole, int(RunKind.WHOLE), int(RunKind.BOUNDED)).int()
    first_rows = first_rows.expand(low.shape)
    end_rows = end_rows.expand(low.shape)
    numbers = numbers.expand(low.shape)
    blocks = torch.stack([first_rows, end_rows, numbers, numbers + (low < high).int()], -1)
    runs = torch.stack([low, high, kind, first_rows], -1)
    schedules = []
    for row in range(lo.shape[0]):
        arrays = Arrays(blocks[row], runs[row], lo[row], hi[row], _int32([]))
        schedules.append((arrays, band.origin(row, keys.stop)))
    return schedules


@dataclass(frozen=True)
class ListedBands:
    """Blocks of keys that are listed for each block of rows, within a band."""

    lists: Chosen
    band: RowBand

    @classmethod
    def of(cls, pattern: Pattern) -> ListedBands | None:
        """The one factor of a pattern that is lists, within the bands of the others; None for any other pattern."""
        lists: list[Chosen] = []
        others: list[Pattern] = []
        for part in pattern.factors:
            placed = placed_lists(part)
            if placed is None:
                others.append(part)
            else:
                lists.append(placed)
        if len(lists) != 1:
            return None
        band = row_band_of(both(*others))
        return None if band is None else cls(lists[0], band)

    @property
    def in_tiles(self) -> bool:
        """Whether the kernel computes tiles, which are faster where many rows share large blocks.

        Otherwise it reads the keys of each row where they lie.
        """
        return min(self.lists.query_block, self.lists.block) >= LEAST_LISTED

    def sizes(self, q_len: int, keys: range) -> tuple[int, int]:
        """Keys and rows of a block; one that is larger than the call is as large as the call, which fits int32."""
        most_keys = max(keys.stop, LEAST_LISTED)
        most_rows = max(q_len, LEAST_LISTED)
        return min(self.lists.block, most_keys), min(self.lists.query_block, most_rows)

    def arrays(self, start: int, q_len: int, keys: range) -> tuple[Arrays, int]:
        """The schedule, and the origin of its panels.

        It has a row block for each block of rows, divided where that has too many rows for the kernel.
        """
        ((listed,),) = self.lists.ascending  # (blocks of rows, blocks of keys)
        block_keys, block_rows = self.sizes(q_len, keys)
        (lo,), (hi,) = (x.int() for x in self.band.bounds([start], q_len, keys))

        # The row blocks: those of a block of rows begin at `pieces` behind its first row.
        piece_count = -(-block_rows // MOST_ROWS)
        piece_rows = -(-block_rows // piece_count)
        pieces = torch.arange(0, block_rows, piece_rows, device="cpu")
        first_of_blocks = torch.arange(len(listed), device="cpu")[:, None] * block_rows
        first = pieces + first_of_blocks
        end = torch.minimum(first + piece_rows, (first_of_blocks + block_rows).clamp(max=q_len))
        block, piece = (first < end).nonzero(as_tuple=True)
        first = first[block, piece]
        end = end[block, piece]
        listed = listed[block]

        # The runs: both bounds grow with the row, so these hold the keys of any row of a row block.
        low = (listed * block_keys).clamp(min=keys.start).maximum(lo[first, None])
        high = ((listed + 1) * block_keys).clamp(max=keys.stop).minimum(hi[end - 1, None])
        has_keys = (listed >= 0) & (low < high)
        whole = (low >= lo[end - 1, None]) & (high <= hi[first, None])
        kind = torch.where(whole, int(RunKind.WHOLE), int(RunKind.BOUNDED))
        runs = torch.stack([low, high, kind, first[:, None].expand(kind.shape)], -1)[has_keys]
        end_runs = has_keys.sum(1).cumsum(0)
        first_runs = torch.nn.functional.pad(end_runs[:-1], (1, 0))
        blocks = torch.stack([first, end, first_runs, end_runs], -1)
        arrays = Arrays(blocks.int(), runs.int(), lo, hi, _int32([]))
        return arrays, self.band.origin(0, keys.stop)

    def as_read(self, starts: list[int], q_len: int, keys: range) -> Lowered:
        """The lists as the kernel reads them."""
        listed = self.lists.listed.cpu().contiguous()
        block_keys, block_rows = self.sizes(q_len, keys)
        lo, hi = (x.int().contiguous() for x in self.band.bounds(starts, q_len, keys))
        batches, lists, _, count = listed.shape
        by_batch, by_list, _, _ = listed.stride()
        struct = CLists(
            block=listed.data_ptr(),
            batch=by_batch,
            list=by_list,
            size=listed.numel(),
            batches=batches,
            lists=lists,
            count=count,
            rows=block_rows,
            keys=block_keys,
            bounds=len(lo),
            lo=lo.data_ptr(),
            hi=hi.data_ptr(),
        )
        return Lowered([], None, (struct, (listed, lo, hi)))

    def pairs(self, start: int, q_len: int, keys: range) -> int:
        """Pairs of the row blocks with the runs of keys that one of their rows may look at."""
        listed = self.lists.ascending
        block_keys, block_rows = self.sizes(q_len, keys)
        first = torch.arange(listed.shape[2], dtype=torch.int32, device="cpu")[:, None] * block_rows
        end = (first + block_rows).clamp(max=q_len)
        low = (listed * block_keys).clamp(min=keys.start)
        high = ((listed + 1) * block_keys).clamp(max=keys.stop)
        window = self.band.window
        if window.left is not None:
            low = low.maximum(first + (start - window.left))
        if window.right is not None:
            high = high.minimum(end + (start + window.right))
        return int(((high - low).clamp(min=0) * (listed >= 0) * (end - first)).sum())

    def most_pairs(self, start: int, q_len: int, keys: range) -> int:
        """The pairs of one list if all its blocks were different and within the bounds; the mean of batch rows."""
        lo, hi = self.band.bounds([start], q_len, keys)
        most_keys = self.lists.listed.shape[-1] * self.lists.block
        return int((hi - lo).clamp(max=most_keys).sum()) // len(lo)


def lists_to_lower(pattern: Pattern) -> ListedBands | None:
    """The lists of a pattern that become a schedule with a run for each block; None where there are no such lists.

    They are the same for all batch rows and heads, and their blocks are so large that a run pays.
    """
    lists = ListedBands.of(pattern)
    if lists is None or lists.lists.block < LEAST_LISTED:
        return None
    if lists.lists.listed.shape[:2] != (1, 1) or len(lists.band.spans) > 1:
        return None
    return lists


def lists_to_read(problem: Problem) -> ListedBands | None:
    """The lists of a problem that the kernel reads itself; None where there are none, and with options and in other
    dtypes, for which a list is lowered to a schedule. They are looked for once."""
    return problem.once(_find_lists_to_read)


def _find_lists_to_read(problem: Problem) -> ListedBands | None:
    if problem.bias is not None or problem.dropout or problem.softcap:
        return None
    if not set(problem.want) <= {"log_sum_exp"}:
        return None
    if problem.dtype not in (torch.float32, torch.float64) or problem.storage != problem.dtype:
        return None
    lists = ListedBands.of(problem.pattern)
    if lists is None or not lists.lists.listed.numel():
        return None
    return lists


def _int32(numbers: list[Any]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device="cpu")
