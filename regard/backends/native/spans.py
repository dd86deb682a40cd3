"""Calls whose batch rows have spans of keys of their own, as padding has: one plan serves every set of spans.

The numbers of the spans are data of a call, like its tensors. They are written into schedules, which are kept for the
newest patterns, so that a set that comes again costs no more than the first one.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import Any

import torch

from regard.backends.native.bands import RowBand, entry_of, first_positions, row_band_of
from regard.backends.native.filling import KernelCall, accumulation_dtype, output_layout
from regard.backends.native.library import MOST_ROWS, CRowBlock, CRun, CSchedule, Library
from regard.core.call import Call
from regard.core.newest import Newest
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns import Pattern, as_pattern
from regard.patterns.row_blocks import Kind

KEPT_SETS = 64  # sets of spans whose schedules are kept for one problem
INT32_BYTES = 4


class SpanSteps:
    """The kernel for calls that differ from a problem in k_len, q_start and the spans of batch rows only."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self.library = library
        self.problem = problem
        self._output_layout = output_layout(problem)
        self._accumulation_dtype = accumulation_dtype(problem.dtype)
        self._wants_log_sum_exp = "log_sum_exp" in problem.want
        self._layout = SpanLayout(problem.batch, problem.q_len)
        rows = torch.arange(problem.batch, dtype=torch.int32, device="cpu")
        self._schedule_of = rows.repeat_interleave(problem.heads)  # of each batch row and head
        self._sets: Newest[SpanSchedules] = Newest(KEPT_SETS)
        # A call takes one by `pop`, which no other thread can divide, and gives it back when it is computed, so what
        # an exception left half written is never used again.
        self._spare: list[KernelCall] = []

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

        output = torch.empty_strided(*self._output_layout, dtype=self.problem.dtype, device="cpu")
        log_sum_exp = None
        if self._wants_log_sum_exp:
            log_sum_exp = torch.empty(
                output.shape[:3], dtype=self._accumulation_dtype, device="cpu"
            )
        try:
            kernel_call = self._spare.pop()
        except IndexError:
            kernel_call = self._new_call()
        layout = None
        if type(k) is torch.Tensor and type(v) is torch.Tensor:
            layout = k_len, q.stride(), k.stride(), v.stride()

        if layout is not None and layout == kernel_call.layout:
            for tensor_struct, x in zip(kernel_call.tensors, (q, k, v, output), strict=True):
                tensor_struct.data = x.data_ptr()
        else:
            kernel_call.layout = None
            kernel_call.write_keys(range(k_len))
            kernel_call.write_tensors(q, k, v, output)
            if layout is not None and all(strides[-1] == 1 for strides in layout[1:]):
                kernel_call.layout = layout  # copies of other tensors lie elsewhere in each call
        struct = kernel_call.struct
        struct.schedule = schedules.address
        struct.threads = min(torch.get_num_threads(), kernel_call.most_threads)
        struct.log_sum_exp = None if log_sum_exp is None else log_sum_exp.data_ptr()
        self.library.forward(kernel_call.address)
        kernel_call.borrowed.clear()
        sound = not kernel_call.unsound.value
        self._spare.append(kernel_call)
        return Result(output, log_sum_exp, sound=sound)

    def _schedules_of(self, call: Call, k_len: int) -> SpanSchedules | None:
        """The schedules of a call, kept where its q_start is no tensor; None if its pattern is no band with spans."""
        if isinstance(call.q_start, torch.Tensor):
            return self._write_schedules(call, k_len)
        name = call.pattern, k_len, call.q_start
        known = self._sets.get(name)
        if known is not None:
            return known
        schedules = self._write_schedules(call, k_len)
        return None if schedules is None else self._sets.keep(name, schedules)

    def _write_schedules(self, call: Call, k_len: int) -> SpanSchedules | None:
        pattern: Pattern = as_pattern(call.pattern)
        band = row_band_of(pattern) or row_band_of(pattern.canonical())
        if band is None:
            return None
        positions = first_positions(call.q_start, self.problem.q_len, k_len)
        return self._layout.write(band, k_len, positions)

    def _new_call(self) -> KernelCall:
        kernel_call = KernelCall(self.problem)
        kernel_call.struct.schedules = self.problem.batch
        kernel_call.struct.schedule_of = self._schedule_of.data_ptr()
        return kernel_call


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
        schedule = CSchedule(blocks=count, runs=count)
        self.structs = (CSchedule * batch)(*[schedule] * batch)

    def write(self, band: RowBand, k_len: int, positions: list[int]) -> SpanSchedules:
        """The schedules of a call.

        Args:
            band: the keys that each query may look at.
            k_len: the number of keys.
            positions: that of the first query of each batch row, or of all of them.
        """
        keys = range(k_len)
        alike = band.window.left is None and band.window.right is None
        numbers = _ScheduleNumbers(self.blocks)
        origins = []
        for row in range(self.batch):
            low, high = band.span(row, keys)
            origins.append(low)
            if alike:
                numbers.add_alike(low, high)
            else:
                position = entry_of(row, positions)
                numbers.add(*band.listed_bounds(position, self.q_len, low, high))
        return self._schedules(numbers, origins)

    def _schedules(self, numbers: _ScheduleNumbers, origins: list[int]) -> SpanSchedules:
        """The structs of the schedules of all batch rows, whose numbers lie behind each other."""
        arrays = numbers.arrays()
        blocks, runs, lo, hi = (numbers_of_all.buffer_info()[0] for numbers_of_all in arrays)
        bytes_of_blocks = ctypes.sizeof(CRowBlock) * len(self.blocks)
        bytes_of_runs = ctypes.sizeof(CRun) * len(self.blocks)
        bytes_of_bounds = INT32_BYTES * self.q_len
        structs = type(self.structs).from_buffer_copy(self.structs)
        for row, struct in enumerate(structs):
            struct.origin = origins[row]
            struct.block = blocks + row * bytes_of_blocks
            struct.run = runs + row * bytes_of_runs
            if numbers.lo:
                struct.bounds = self.q_len
                struct.lo = lo + row * bytes_of_bounds
                struct.hi = hi + row * bytes_of_bounds
        return SpanSchedules(structs, arrays)


class _ScheduleNumbers:
    """The numbers of the schedules of all batch rows: those of `CRowBlock`, of `CRun`, and the bounds of each query.

    Lists take less time than structs, of which a field is written at a time.
    """

    def __init__(self, row_blocks: list[range]) -> None:
        self.row_blocks = row_blocks
        self.blocks: list[int] = []
        self.runs: list[int] = []
        self.lo: list[int] = []
        self.hi: list[int] = []

    def add_alike(self, low: int, high: int) -> None:
        """A batch row whose queries may all look at the keys low to high."""
        for number, rows in enumerate(self.row_blocks):
            self._add(number, rows, low, high, Kind.WHOLE)

    def add(self, lo: list[int], hi: list[int]) -> None:
        """A batch row whose queries may look at the keys lo to hi, both of which grow with the query."""
        self.lo += lo
        self.hi += hi
        for number, rows in enumerate(self.row_blocks):
            low = lo[rows.start]
            high = hi[rows.stop - 1]
            whole = lo[rows.stop - 1] == low and hi[rows.start] == high
            self._add(number, rows, low, high, Kind.WHOLE if whole else Kind.BOUNDED)

    def _add(self, number: int, rows: range, low: int, high: int, kind: Kind) -> None:
        """A row block and its run, which it does not read where it has no key."""
        has_keys = 1 if low < high else 0
        self.blocks += rows.start, rows.stop, number, number + has_keys
        self.runs += low, high, int(kind), rows.start

    def arrays(self) -> tuple[Any, ...]:
        return tuple(array("i", x) for x in (self.blocks, self.runs, self.lo, self.hi))
