"""Calls whose batch rows have spans of keys of their own, as padding has: one plan serves every set of spans.

The numbers of the spans are data of a call, like its tensors. They are written into schedules, which are kept for the
newest patterns, so that a set that comes again costs no more than the first one.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from regard.backends.native.filling import FEWEST, Filled, dense, describe, describe_vectors
from regard.backends.native.library import MOST_ROWS, CSchedule, Library
from regard.core.call import Call
from regard.core.newest import Newest
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns import Pattern, as_pattern
from regard.patterns.band import Band
from regard.patterns.bands import row_span
from regard.patterns.row_blocks import Kind

KEPT_SETS = 64  # sets of spans whose schedules are kept for one problem
NUMBERS = 4  # int32 of a row block, and of a run
INT32 = 4  # bytes
MOST_KEYS = 2**31 - 1


class RowBand(NamedTuple):
    """The keys of a query: those up to `left` before and `right` after its position, within a span.

    spans: start and stop of each batch row, or of all of them.
    """

    left: int | None
    right: int | None
    spans: list[tuple[int, int]]

    def span(self, row: int, k_len: int) -> tuple[int, int]:
        """The keys of a batch row that some query may look at, among k_len."""
        start, stop = self.spans[row if len(self.spans) > 1 else 0]
        low = min(max(start, 0), k_len)
        return low, max(min(stop, k_len), low)

    def run(self, position: int, low: int, high: int) -> tuple[int, int]:
        """The keys of the query at a position, of those from low to high."""
        lo = low if self.left is None else min(max(position - self.left, low), high)
        hi = high if self.right is None else min(max(position + self.right + 1, low), high)
        return lo, max(lo, hi)

    def bounds(self, position: int, q_len: int, low: int, high: int) -> tuple[list[int], list[int]]:
        """The first key and the end of the keys of each query from a position on, as `run` gives them."""
        lo = [low] * q_len
        if self.left is not None:
            lo = clamped(position - self.left, q_len, low, high)
        hi = [high] * q_len
        if self.right is not None:
            hi = clamped(position + self.right + 1, q_len, low, high)
        if self.left is not None and self.right is not None and self.left + self.right + 1 < 0:
            return lo, [*map(max, lo, hi)]
        return lo, hi


def clamped(first: int, count: int, low: int, high: int) -> list[int]:
    """So many numbers from `first` on, each between low and high.

    >>> clamped(2, 6, 4, 6)
    [4, 4, 4, 5, 6, 6]
    """
    below = min(max(low - first, 0), count)
    above = min(max(first + count - 1 - high, 0), count)
    return [low] * below + [*range(first + below, first + count - above)] + [high] * above


def row_band_of(pattern: Pattern) -> RowBand | None:
    """The pattern as a band within a span by batch row; None for any other.

    It is `bands_of` without operations on tensors, which take longer than a short call.
    """
    band = Band()
    starts = [0]
    stops = [MOST_KEYS]
    for part in pattern.factors:
        if (span := row_span(part)) is not None:
            starts = _each(max, starts, span[0].tolist())
            if span[1] is not None:
                stops = _each(min, stops, span[1].tolist())
        elif (other := part.band()) is not None:
            band = band & other
        else:
            return None
    starts = [max(start, band.start or 0) for start in starts]
    if band.stop is not None:
        stops = [min(stop, band.stop) for stop in stops]
    rows = max(len(starts), len(stops))
    spans = [*zip(_for_rows(starts, rows), _for_rows(stops, rows), strict=True)]
    return RowBand(band.left, band.right, spans)


def _each(choose: Callable[[int, int], int], some: list[int], others: Any) -> list[int]:
    """The larger or smaller of each two numbers; one number stands for all rows."""
    others = others if isinstance(others, list) else [others]
    rows = max(len(some), len(others))
    return [*map(choose, _for_rows(some, rows), _for_rows(others, rows))]


def _for_rows(numbers: list[int], rows: int) -> list[int]:
    return numbers * rows if len(numbers) == 1 else numbers


@dataclass(frozen=True, eq=False)
class SpanSchedules:
    """The schedules of all batch rows of a call, and the arrays that their structs point at."""

    structs: Any
    arrays: tuple[Any, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.structs)


class SpanLayout:
    """What the schedules of one problem have in common, whatever its spans: row blocks, and a run of keys in each."""

    def __init__(self, batch: int, q_len: int) -> None:
        self.batch = batch
        self.q_len = q_len
        self.blocks = [
            range(first, min(first + MOST_ROWS, q_len)) for first in range(0, q_len, MOST_ROWS)
        ]
        count = len(self.blocks)
        one = CSchedule(count, count, 0, 0, 0, None, None, None, None, None)
        self.structs = (CSchedule * batch)(*[one] * batch)

    def place(self, band: RowBand, k_len: int, starts: list[int]) -> SpanSchedules:
        """The schedules of a call.

        starts: the position of the first query, one number, or one for each batch row.
        """
        blocks: list[int] = []
        runs: list[int] = []
        lows: list[int] = []
        highs: list[int] = []
        origins = []
        alike = band.left is None and band.right is None
        for row in range(self.batch):
            low, high = band.span(row, k_len)
            origins.append(low)
            if alike:
                self._add_blocks(blocks, runs, None, None, low, high)
                continue
            start = starts[row if len(starts) > 1 else 0]
            lo, hi = band.bounds(start, self.q_len, low, high)
            lows += lo
            highs += hi
            self._add_blocks(blocks, runs, lo, hi, low, high)
        return self._schedules(blocks, runs, lows, highs, origins)

    def _add_blocks(
        self,
        blocks: list[int],
        runs: list[int],
        lo: list[int] | None,
        hi: list[int] | None,
        low: int,
        high: int,
    ) -> None:
        """Add the row blocks and runs of a batch row, four numbers each, as the kernel reads them."""
        kind = int(Kind.WHOLE)
        for number, rows in enumerate(self.blocks):
            first = rows.start
            last = rows.stop - 1
            begin = low
            end = high
            if lo is not None and hi is not None:
                begin = lo[first]
                end = hi[last]
                whole = lo[last] == begin and hi[first] == end
                kind = int(Kind.WHOLE if whole else Kind.BOUNDED)
            blocks += first, rows.stop, number, number + int(begin < end)
            runs += begin, end, kind, first

    def _schedules(
        self,
        blocks: list[int],
        runs: list[int],
        lows: list[int],
        highs: list[int],
        origins: list[int],
    ) -> SpanSchedules:
        arrays = tuple(array("i", numbers) for numbers in (blocks, runs, lows, highs))
        block, run, lo, hi = (one.buffer_info()[0] for one in arrays)
        of_blocks = INT32 * NUMBERS * len(self.blocks)
        of_bounds = INT32 * self.q_len if lows else 0
        structs = type(self.structs).from_buffer_copy(self.structs)
        for row, struct in enumerate(structs):
            struct.origin = origins[row]
            struct.block = block + row * of_blocks
            struct.run = run + row * of_blocks
            if lows:
                struct.bounds = self.q_len
                struct.lo = lo + row * of_bounds
                struct.hi = hi + row * of_bounds
        return SpanSchedules(structs, arrays)


class SpanSteps:
    """The kernel for calls that differ from a problem in k_len, q_start and the spans of batch rows only."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self.library = library
        self.problem = problem
        self._layout = SpanLayout(problem.batch, problem.q_len)
        self._wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
        self._summed = "log_sum_exp" in problem.want
        self._products = (
            problem.batch * problem.heads * problem.q_len * (problem.head_dim + problem.v_dim)
        )  # of a key
        rows = torch.arange(problem.batch, dtype=torch.int32, device="cpu")[:, None]
        self._schedule_of = rows.expand(problem.batch, problem.heads).contiguous()
        # Of the output (batch, heads, q_len, v_dim), which lies as (batch, q_len, heads, v_dim): shape and strides.
        heads, q_len, v_dim = problem.heads, problem.q_len, problem.v_dim
        self._shape = problem.batch, heads, q_len, v_dim
        self._strides = q_len * heads * v_dim, v_dim, heads * v_dim, 1
        self._sets: Newest[SpanSchedules] = Newest(KEPT_SETS)
        self._spare: list[Filled] = []  # structs that no call uses now

    def run(self, call: Call) -> Result | None:
        """Output, and the log-sum-exp if the problem wants it; None where a call needs a plan of its own."""
        q = call.q
        k: Any = call.k
        v: Any = call.v
        if isinstance(k, Stored) and k.first:  # a plan refuses keys that the cache dropped
            return None
        k_len = k.shape[2]
        schedules = self._schedules_of(call, k_len)
        if schedules is None:
            return None

        output = torch.empty_strided(
            self._shape, self._strides, dtype=self.problem.dtype, device="cpu"
        )
        log_sum_exp = None
        if self._summed:
            log_sum_exp = torch.empty(self._shape[:3], dtype=self._wide, device="cpu")
        try:
            filled = self._spare.pop()
        except IndexError:
            filled = self._new()

        borrowed = None  # copies that live until the kernel has run
        layout = None
        if type(k) is torch.Tensor and type(v) is torch.Tensor:
            layout = k_len, q.stride(), k.stride(), v.stride()
        if layout is not None and layout == filled.layout:
            for into, x in zip(filled.tensors, (q, k, v, output), strict=True):
                into.data = x.data_ptr()
        else:
            filled.layout = None
            borrowed = self._describe(filled, q, k, v, output)
            if layout is not None and all(strides[-1] == 1 for strides in layout[1:]):
                filled.layout = layout
        filled.call.schedule = schedules.address
        filled.call.threads = min(torch.get_num_threads(), filled.most_threads)
        filled.call.log_sum_exp = None if log_sum_exp is None else log_sum_exp.data_ptr()
        self.library.forward(filled.address)
        del borrowed
        sound = not filled.unsound.value
        self._spare.append(filled)
        return Result(output, log_sum_exp, sound=sound)

    def _schedules_of(self, call: Call, k_len: int) -> SpanSchedules | None:
        """The schedules of a call, kept where its q_start is no tensor; None if its pattern is no band with spans."""
        start = call.q_start
        if isinstance(start, torch.Tensor):
            return self._place(call.pattern, k_len, start.tolist())
        name = call.pattern, k_len, start
        found = self._sets.get(name)
        if found is not None:
            return found
        first = k_len - self.problem.q_len if start is None else start
        placed = self._place(call.pattern, k_len, [first])
        return None if placed is None else self._sets.keep(name, placed)

    def _place(
        self, pattern: Pattern | str | None, k_len: int, starts: list[int]
    ) -> SpanSchedules | None:
        pattern = as_pattern(pattern)
        band = row_band_of(pattern) or row_band_of(pattern.canonical())
        return None if band is None else self._layout.place(band, k_len, starts)

    def _new(self) -> Filled:
        filled = Filled(self.problem)
        filled.call.schedules = self.problem.batch
        filled.call.schedule_of = self._schedule_of.data_ptr()
        return filled

    def _describe(self, filled: Filled, q: Any, k: Any, v: Any, output: torch.Tensor) -> Any:
        """Write the tensors of a call; returns what must live until it is computed."""
        call = filled.call
        k_len = k.shape[2]
        q = dense(q)
        describe(call.q, q)
        describe(call.out, output)
        borrowed = (
            q,
            describe_vectors(call.k, call.k_scale, k),
            describe_vectors(call.v, call.v_scale, v),
        )
        call.first_key = 0
        call.keys = k_len
        filled.most_threads = max(1, self._products * k_len // FEWEST)
        return borrowed
