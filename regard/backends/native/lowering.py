"""Lowers a problem to the schedules that the kernel reads: one for each pattern that a batch row or head has.

A band is lowered without evaluating a pair: each row block has one run with the bounds of every row. So are lists of
blocks of keys within a band: where many rows share large blocks, with a run for each; else the kernel reads the lists
themselves, and each key where it lies. Other patterns are lowered by `Schedule.arrays`. The
panels in which the kernel adds up keys begin at the first key that any query of a text could look at, wherever this
call begins, so that a continued text and a padded one get equal bits.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.backends.native.library import MOST_ROWS, CLists, CSchedule
from regard.backends.schedule import Arrays, Schedule
from regard.core.problem import Problem
from regard.patterns import Pattern
from regard.patterns.algebra import both
from regard.patterns.band import EVERY_PAIR
from regard.patterns.bands import row_span
from regard.patterns.chosen import LEAST_LISTED, Chosen, placed_lists
from regard.patterns.row_blocks import Kind

ROWS = 64  # of a row block in a pattern that is no band; more rows share few keys there


@dataclass(frozen=True, eq=False)
class Lowered:
    """The schedules of a call, as arrays and as the structs that point at them.

    schedules: the different ones, with the origin of their panels. schedule_of: (batch, heads) int32, which schedule;
    None if all batch rows and heads have the first. lists: a CLists in place of schedules, and what it points at.
    """

    schedules: list[tuple[Arrays, int]]
    schedule_of: torch.Tensor | None
    lists: tuple[CLists, tuple[torch.Tensor, ...]] | None = None
    structs: Any = field(init=False, repr=False)  # the array of rg_schedule

    def __post_init__(self) -> None:
        # Here and not when first asked for, which two threads could do at once.
        structs = (CSchedule * len(self.schedules))()
        for number, (arrays, origin) in enumerate(self.schedules):
            structs[number] = _struct(arrays, origin)
        object.__setattr__(self, "structs", structs)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.structs)

    @property
    def nbytes(self) -> int:
        tensors = (
            x
            for arrays, _ in self.schedules
            for x in (arrays.blocks, arrays.runs, arrays.lo, arrays.hi, arrays.bits)
        )
        return sum(x.nbytes for x in (*tensors, *(() if self.lists is None else self.lists[1])))


def _struct(arrays: Arrays, origin: int) -> CSchedule:
    return CSchedule(
        len(arrays.blocks),
        len(arrays.runs),
        len(arrays.lo),
        len(arrays.bits),
        origin,
        arrays.blocks.data_ptr(),
        arrays.runs.data_ptr(),
        arrays.lo.data_ptr(),
        arrays.hi.data_ptr(),
        arrays.bits.data_ptr(),
    )


@dataclass(frozen=True)
class Bands:
    """A band whose first and last keys may differ by batch row.

    left, right: as in Band. start, stop: int64 (1,) or (batch,), the keys start <= key < stop that a row may look at.
    """

    left: int | None
    right: int | None
    start: torch.Tensor
    stop: torch.Tensor

    def bounds(
        self, starts: list[int], q_len: int, keys: range
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first key and the end of the keys of each row, both int64 (1 or batch, q_len), within `keys`.

        Both grow with the row, and are equal for an empty row.
        """
        low = self.start.clamp(keys.start, keys.stop)[:, None]
        high = torch.maximum(self.stop.clamp(keys.start, keys.stop)[:, None], low)
        position = torch.tensor(starts, device="cpu")[:, None] + torch.arange(q_len, device="cpu")
        lo = low if self.left is None else (position - self.left).clamp(low, high)
        hi = high if self.right is None else (position + (self.right + 1)).clamp(low, high)
        lo, hi = torch.broadcast_tensors(lo, torch.maximum(lo, hi))
        return lo.expand(-1, q_len), hi.expand(-1, q_len)

    def bounds_alone(self, starts: list[int], q_len: int, keys: range) -> tuple[int, int] | None:
        """The same for one query of all batch rows, as in decoding, without the time of operations on tensors; None
        for more queries, or where batch rows differ."""
        if q_len > 1 or len(starts) > 1 or len(self.start) > 1 or len(self.stop) > 1:
            return None
        low = min(max(int(self.start), keys.start), keys.stop)
        high = max(min(max(int(self.stop), keys.start), keys.stop), low)
        (position,) = starts
        lo = low if self.left is None else min(max(position - self.left, low), high)
        hi = high if self.right is None else min(max(position + self.right + 1, low), high)
        return lo, max(lo, hi)

    def arrays(self, starts: list[int], q_len: int, keys: range) -> list[tuple[Arrays, int]]:
        """The schedule of each batch row, in blocks of the most rows, each with one run and the bounds of its rows."""
        if (alone := self.bounds_alone(starts, q_len, keys)) is not None:
            low, high = alone
            block = [[0, 1, 0, int(low < high)]]
            run = [[low, high, int(Kind.WHOLE), 0]]
            numbers = (
                torch.tensor(x, dtype=torch.int32, device="cpu")
                for x in (block, run, [low], [high], [])
            )
            return [(Arrays(*numbers), min(max(int(self.start), 0), keys.stop))]
        lo, hi = self.bounds(starts, q_len, keys)
        lo = lo.int().contiguous()
        hi = hi.int().contiguous()
        first = torch.arange(0, q_len, MOST_ROWS, dtype=torch.int32, device="cpu")
        end = (first + MOST_ROWS).clamp(max=q_len)
        low, high = lo[:, first], hi[:, end - 1]  # (batch rows, blocks)
        number = torch.arange(len(first), dtype=torch.int32, device="cpu").expand(low.shape)
        whole = (low == lo[:, end - 1]) & (hi[:, first] == high)
        kind = torch.where(whole, int(Kind.WHOLE), int(Kind.BOUNDED)).int()
        blocks = torch.stack(
            [first.expand(low.shape), end.expand(low.shape), number, number + (low < high).int()],
            -1,
        )
        runs = torch.stack([low, high, kind, first.expand(low.shape)], -1)
        none = torch.zeros(0, dtype=torch.int32, device="cpu")
        origins = self.start.clamp(0, keys.stop).expand(len(lo)).tolist()
        parts = zip(blocks, runs, lo, hi, origins, strict=True)
        return [
            (Arrays(block, run, one, other, none), origin)
            for block, run, one, other, origin in parts
        ]


@dataclass(frozen=True)
class ListedBands:
    """Blocks of keys that are listed for each block of rows, within a band."""

    lists: Chosen
    bands: Bands

    @property
    def in_tiles(self) -> bool:
        return min(self.lists.query_block, self.lists.block) >= LEAST_LISTED

    def sizes(self, q_len: int, keys: range) -> tuple[int, int]:
        """Keys and rows of a block; one that is larger than the call is as large as the call, which fits int32."""
        most = max(keys.stop, LEAST_LISTED), max(q_len, LEAST_LISTED)
        return min(self.lists.block, most[0]), min(self.lists.query_block, most[1])

    def arrays(self, start: int, q_len: int, keys: range) -> tuple[Arrays, int]:
        """The schedule: a row block for each block of rows, divided where it has too many rows for the kernel."""
        ((listed,),), (block, rows) = self.lists.ascending, self.sizes(q_len, keys)
        (lo,), (hi,) = (x.int() for x in self.bands.bounds([start], q_len, keys))
        size = -(-rows // -(-rows // MOST_ROWS))
        at = (
            torch.arange(0, rows, size, device="cpu")
            + torch.arange(len(listed), device="cpu")[:, None] * rows
        )
        end = torch.minimum(at + size, (at[:, :1] + rows).clamp(max=q_len))
        group, piece = (at < end).nonzero(as_tuple=True)
        first, end, listed = at[group, piece], end[group, piece], listed[group]  # of each row block
        least, most = (
            lo[first, None],
            hi[end - 1, None],
        )  # of the keys of any row; both bounds grow with the row
        low = (listed * block).clamp(min=keys.start).maximum(least)
        high = ((listed + 1) * block).clamp(max=keys.stop).minimum(most)
        live = (listed >= 0) & (low < high)
        whole = (low >= lo[end - 1, None]) & (high <= hi[first, None])
        kind = torch.where(whole, int(Kind.WHOLE), int(Kind.BOUNDED))
        runs = torch.stack([low, high, kind, first[:, None].expand(kind.shape)], -1)[live]
        after = live.sum(1).cumsum(0)
        blocks = torch.stack([first, end, torch.nn.functional.pad(after[:-1], (1, 0)), after], -1)
        none = torch.zeros(0, dtype=torch.int32, device="cpu")
        return Arrays(blocks.int(), runs.int(), lo, hi, none), min(
            max(int(self.bands.start), 0), keys.stop
        )

    def as_read(self, starts: list[int], q_len: int, keys: range) -> Lowered:
        """The lists as the kernel reads them."""
        listed = self.lists.listed.cpu().contiguous()
        block, rows = self.sizes(q_len, keys)
        lo, hi = (x.int().contiguous() for x in self.bands.bounds(starts, q_len, keys))
        batches, lists, _, count = listed.shape
        by = listed.stride()
        size = listed.numel()
        where = lo.data_ptr(), hi.data_ptr()
        described = CLists(
            listed.data_ptr(),
            by[0],
            by[1],
            size,
            batches,
            lists,
            count,
            rows,
            block,
            len(lo),
            *where,
        )
        return Lowered([], None, (described, (listed, lo, hi)))

    def pairs(self, start: int, q_len: int, keys: range) -> int:
        """Pairs of the row blocks with the runs of keys that one of their rows may look at."""
        listed, (block, rows), bands = self.lists.ascending, self.sizes(q_len, keys), self.bands
        first = torch.arange(0, rows * listed.shape[2], rows, dtype=torch.int32, device="cpu")[
            :, None
        ]
        end = (first + rows).clamp(max=q_len)
        low = (listed * block).clamp(min=keys.start)
        high = ((listed + 1) * block).clamp(max=keys.stop)
        if bands.left is not None:
            low = low.maximum(first + (start - bands.left))
        if bands.right is not None:
            high = high.minimum(end + (start + bands.right))
        return int(((high - low).clamp(min=0) * (listed >= 0) * (end - first)).sum())

    def most_pairs(self, start: int, q_len: int, keys: range) -> int:
        """The pairs of one list if all its blocks were different and within the bounds; the mean of batch rows."""
        lo, hi = self.bands.bounds([start], q_len, keys)
        return int(
            (hi - lo).clamp(max=self.lists.listed.shape[-1] * self.lists.block).sum()
        ) // len(lo)


def lists_of(pattern: Pattern, k_len: int) -> ListedBands | None:
    """The pattern as lists of blocks of keys for many rows, alone or joined with bands by `&`; None for any other."""
    found = _listed(pattern, k_len)
    if found is None or found.lists.block < LEAST_LISTED or found.lists.listed.shape[:2] != (1, 1):
        return None
    return None if len(found.bands.start) > 1 or len(found.bands.stop) > 1 else found


def lists_read(problem: Problem) -> ListedBands | None:
    """The lists of a problem, if the kernel reads them itself; None with options and in other dtypes, where a list is
    lowered to a schedule. They are looked for once."""
    return problem.once(_lists_read)


def _lists_read(problem: Problem) -> ListedBands | None:
    plain = (
        problem.bias is None
        and not problem.dropout
        and not problem.softcap
        and set(problem.want) <= {"log_sum_exp"}
    )
    if (
        not plain
        or problem.dtype not in (torch.float32, torch.float64)
        or problem.storage != problem.dtype
    ):
        return None
    found = _listed(problem.pattern, problem.k_len)
    return None if found is None or not found.lists.listed.numel() else found


def rows_of_lists(problem: Problem) -> ListedBands | None:
    """The same, if the kernel reads the keys of each row where they lie; None where it computes tiles, which are faster
    where many rows share large blocks."""
    found = lists_read(problem)
    return None if found is None or found.in_tiles else found


def _listed(pattern: Pattern, k_len: int) -> ListedBands | None:
    lists: list[Chosen] = []
    others: list[Pattern] = []
    for part in pattern.factors:
        listed = placed_lists(part)
        if listed is None:
            others.append(part)
        else:
            lists.append(listed)
    if len(lists) != 1:
        return None

    bands = bands_of(both(*others), k_len)
    return None if bands is None else ListedBands(lists[0], bands)


def bands_of(pattern: Pattern, k_len: int) -> Bands | None:
    """The pattern as bands, if it is a band, or bands and spans of keys by batch row that are joined by `&`."""
    common = EVERY_PAIR
    start = torch.zeros(1, dtype=torch.int64, device="cpu")
    stop = torch.full((1,), k_len, device="cpu")
    for part in pattern.factors:
        span = row_span(part)
        if span is not None:
            start = torch.maximum(start, span[0])
            stop = stop if span[1] is None else torch.minimum(stop, span[1])
            continue
        band = part.known_band
        if band is None:
            return None
        common = band if common is EVERY_PAIR else common & band
    start = start.clamp(min=common.start or 0)
    if common.stop is not None:
        stop = stop.clamp(max=common.stop)
    return Bands(common.left, common.right, start, stop)


def bands_of_problem(problem: Problem) -> Bands | None:
    """`bands_of` for the pattern and the keys of a problem, found once."""
    return problem.once(_bands_of_problem)


def _bands_of_problem(problem: Problem) -> Bands | None:
    return bands_of(problem.pattern, problem.k_len)


def lower(problem: Problem, keys: range, starts: list[int], backward: bool = False) -> Lowered:
    """The schedules of a problem.

    Args:
        problem: the call.
        keys: those that the tensors of the call hold.
        starts: the position of the first query in each batch row, or in all of them.
        backward: for the backward pass, which reads lists row by row alone.
    """
    pattern, batch, heads = problem.pattern, problem.batch, problem.heads
    if (bands := bands_of_problem(problem)) is not None:
        schedules = bands.arrays(starts, problem.q_len, keys)
        rows = torch.arange(len(schedules), dtype=torch.int32, device="cpu")[:, None]
        return Lowered(
            schedules, None if len(schedules) == 1 else rows.expand(batch, heads).contiguous()
        )
    if (listed := lists_read(problem)) is not None and not (backward and listed.in_tiles):
        return listed.as_read(starts, problem.q_len, keys)
    schedules = []
    known = {}
    numbers = []
    for row in range(batch if pattern.varies_by_row or len(starts) > 1 else 1):
        own = pattern.for_row(row).canonical() if pattern.varies_by_row else pattern
        start = starts[row] if len(starts) > 1 else starts[0]
        for head in range(heads if pattern.varies_by_head else 1):
            name = own.for_head(head).canonical() if pattern.varies_by_head else own, start
            if name not in known:
                known[name] = len(schedules)
                schedules.append(_schedule(problem, *name, keys))
            numbers.append(known[name])
    if len(schedules) == 1:
        return Lowered(schedules, None)
    table = torch.tensor(numbers, dtype=torch.int32, device="cpu").view(
        -1, heads if pattern.varies_by_head else 1
    )
    return Lowered(schedules, table.expand(batch, heads).contiguous())


def _schedule(problem: Problem, pattern: Pattern, start: int, keys: range) -> tuple[Arrays, int]:
    """The schedule of one batch row and head, and the origin of its panels."""
    q_len, k_len = problem.q_len, problem.k_len
    if (bands := bands_of(pattern, k_len)) is not None:
        return bands.arrays([start], q_len, keys)[0]
    if (lists := lists_of(pattern, k_len)) is not None:
        return lists.arrays(start, q_len, keys)
    origin = min(pattern.key_range(0, k_len - 1, k_len).start, keys.stop)
    return Schedule(pattern, q_len, k_len, (start, start), keys, ROWS).arrays(), origin
