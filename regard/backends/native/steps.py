"""Calls of few queries over any number of keys, without a new plan for each: the steps of decoding.

While a cache grows, calls differ only in k_len and in the positions of their queries. For a band that is three numbers
for each batch row, so they are written into arrays that are kept between calls, and the kernel is called.
"""

from __future__ import annotations

import ctypes
from types import NoneType
from typing import Any, NamedTuple

import torch

from regard.backends.native.filling import FEWEST, Filled, dense, describe, describe_bias, describe_vectors
from regard.backends.native.library import CSchedule, Library
from regard.backends.native.lowering import Bands, Lowered, bands_of
from regard.core.call import STEP, Call
from regard.core.problem import RELATIVE, Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns import Pattern, as_pattern
from regard.patterns.algebra import both, either
from regard.patterns.ranges import union
from regard.patterns.row_blocks import Kind

MOST_KEYS = 2**31 - 1
MOST_RUNS = 4  # of one query


def steps_of(library: Library, problem: Problem) -> Steps | None:
    """The steps of calls like this problem; None where they need a plan for each k_len."""
    learning = problem.needs_grad or problem.bias_learns or problem.forward_mode
    watched = set(problem.want) - {"log_sum_exp"}
    if learning or watched or problem.bias == RELATIVE or problem.dropout or problem.strict:
        return None
    if problem.pattern.structured and (bands := alternatives_of(problem.pattern, MOST_KEYS)) is not None:
        few = problem.q_len <= STEP or (len(bands) == 1 and problem.bias is None)
        return Steps(library, problem, bands) if few and (len(bands) == 1 or problem.q_len == 1) else None
    return None


def alternatives_of(pattern: Pattern, k_len: int) -> list[Bands] | None:
    """The bands that a pattern joins by `|`, as in `causal & (causal_window(9) | prefix(4))`; else None."""
    if (bands := bands_of(pattern, k_len)) is not None:
        return [bands]
    if len(pattern.alternatives) > 1:
        parts = [alternatives_of(part, k_len) for part in pattern.alternatives]
        known = [part for part in parts if part is not None]
        found = [one for part in known for one in part]
        return found if len(known) == len(parts) and len(found) <= MOST_RUNS else None
    wide = next((part for part in pattern.factors if len(part.alternatives) > 1), None)
    if wide is None:
        return None
    rest = [part for part in pattern.factors if part is not wide]
    return alternatives_of(either(*(both(part, *rest) for part in wide.alternatives)), k_len)


class Steps:
    """The kernel for calls that differ from a problem in k_len, q_start and the spans of batch rows only."""

    def __init__(self, library: Library, problem: Problem, bands: list[Bands]) -> None:
        self.library, self.problem = library, problem
        self.bands = [_row_band(one) for one in bands]
        self.varies = problem.pattern.varies_by_row
        self.summed = "log_sum_exp" in problem.want
        self._products = problem.batch * problem.heads * problem.q_len * (problem.head_dim + problem.v_dim)  # of a key
        self._repeats = not (self.varies or self.summed or problem.q_len > STEP or problem.bias is not None)
        self._repeats &= len(self.bands[0].spans) == 1
        self._wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
        rows, heads, dim = problem.q_len, problem.heads, problem.v_dim
        # Of the output (batch, heads, q_len, v_dim), which lies as (batch, q_len, heads, v_dim): shape and strides.
        self._room = (problem.batch, heads, rows, dim), (rows * heads * dim, dim, heads * dim, 1)
        self._alike: list[_Filled] = []  # structs that no call uses now, with one schedule for all batch rows
        self._by_row: list[_Filled] = []  # with a schedule for each batch row

    def run(self, call: Call) -> Result | None:
        """Output, and the log-sum-exp if the problem wants it; None if the spans of this call leave more bands apart
        than those of the problem, which needs a plan."""
        problem, q = self.problem, call.q
        if self._repeats and type(call.k) is type(call.v) is torch.Tensor and type(call.q_start) in (int, NoneType):
            return self._repeated(call, q, call.k, call.v)
        k, v = (x if isinstance(x, Stored) else dense(x) for x in (call.k, call.v))
        k_len = k.shape[2]
        bands = self.bands
        if self.varies:  # with other numbers in each call, which decide the order of the bands and which one is needed
            bands = [_row_band(one) for one in alternatives_of(as_pattern(call.pattern).canonical(), MOST_KEYS) or ()]
            if not 0 < len(bands) <= len(self.bands):
                return None
        output, q = torch.empty_strided(*self._room, dtype=problem.dtype, device="cpu"), dense(q)
        lse = torch.empty(q.shape[:3], dtype=self._wide, device="cpu") if self.summed else None
        first = k.first if isinstance(k, Stored) else 0
        by_row = isinstance(call.q_start, torch.Tensor) or self.varies
        spare: list[Any] = [] if problem.q_len > STEP else self._by_row if by_row else self._alike
        try:
            filled = spare.pop()
        except IndexError:
            filled = self._new(problem.batch if by_row else 1)
        filled.place(bands, range(first, k_len), call.q_start)
        filled.layout, into = None, filled.call
        into.first_key, into.keys = first, k_len - first
        into.threads = min(torch.get_num_threads(), max(1, self._products * k_len // FEWEST))
        describe(into.q, q)
        describe(into.out, output)
        kept: list[Any] = [describe_vectors(into.k, into.k_scale, k), describe_vectors(into.v, into.v_scale, v)]
        if isinstance(call.bias, torch.Tensor):
            bias = call.bias[(None,) * (4 - call.bias.dim())]
            bias = bias if bias.shape[-1] == 1 else bias[..., first:]
            kept.append(describe_bias(into.bias, dense(bias.detach().to(self._wide)), problem.batch))
        into.log_sum_exp = None if lse is None else lse.data_ptr()
        self.library.forward(filled.address)
        del kept
        sound = not filled.unsound.value
        spare.append(filled)
        return Result(output, lse, sound=sound)

    def _repeated(self, call: Call, q: torch.Tensor, k: Any, v: Any) -> Result:
        """The same for tensors that are laid out as in the call before, as in the next layer: only addresses differ."""
        try:
            filled = self._alike.pop()
        except IndexError:
            filled = self._new(1)
        k_len = k.shape[2]
        layout = k_len, call.q_start, q.stride(), k.stride(), v.stride()
        output = torch.empty_strided(*self._room, dtype=self.problem.dtype, device="cpu")
        if layout != filled.layout:
            filled.layout = None
            q, k, v = dense(q), dense(k), dense(v)
            filled.place(self.bands, range(k_len), call.q_start)
            filled.call.first_key, filled.call.keys = 0, k_len
            filled.most_threads = max(1, self._products * k_len // FEWEST)
            for into, x in zip(filled.tensors, (q, k, v, output), strict=True):
                describe(into, x)
            if all(strides[-1] == 1 for strides in layout[2:]):
                filled.layout = layout
        for into, x in zip(filled.tensors, (q, k, v, output), strict=True):
            into.data = x.data_ptr()
        filled.call.threads = min(torch.get_num_threads(), filled.most_threads)
        self.library.forward(filled.address)
        sound = not filled.unsound.value
        self._alike.append(filled)
        return Result(output, sound=sound)

    def _new(self, count: int) -> Any:
        """A call struct with so many schedules. As in `Kernel.compute`, only a call that was computed keeps it."""
        return _Many(self.problem) if self.problem.q_len > STEP else _Filled(self.problem, count, len(self.bands))


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


def _row_band(bands: Bands) -> RowBand:
    spans = torch.broadcast_tensors(bands.start, bands.stop)
    return RowBand(bands.left, bands.right, list(zip(*(one.tolist() for one in spans), strict=True)))


class _Many(Filled):
    """A call struct for many queries, whose schedules are made for one call."""

    def place(self, bands: list[RowBand], keys: range, q_start: int | torch.Tensor | None) -> None:
        """Write the schedule of each batch row."""
        problem, (band,) = self.problem, bands
        start, stop = (torch.tensor(ends, dtype=torch.int64, device="cpu") for ends in zip(*band.spans, strict=True))
        starts = _starts(q_start, problem.q_len, keys.stop)
        schedules = Bands(band.left, band.right, start, stop).arrays(starts, problem.q_len, keys)
        rows = torch.arange(len(schedules), dtype=torch.int32, device="cpu")[:, None]
        table = None if len(schedules) == 1 else rows.expand(problem.batch, problem.heads).contiguous()
        self.lowered = Lowered(schedules, table)
        self.call.schedules, self.call.schedule = len(schedules), self.lowered.address
        self.call.schedule_of = None if table is None else table.data_ptr()


class _Filled(Filled):
    """A call struct with the arrays of its schedules: one row block in each, and a run for each band."""

    def __init__(self, problem: Problem, count: int, most: int) -> None:
        super().__init__(problem)
        q_len, numbers = problem.q_len, ctypes.c_int32
        self.count, self.most = count, most
        self.block, self.runs = (numbers * (4 * count))(*([0, q_len, 0, 1] * count)), (numbers * (4 * most * count))()
        self.lo, self.hi = (numbers * (q_len * count))(), (numbers * (q_len * count))()
        own = [numbers(row) for row in range(count) for _ in range(problem.heads)]
        self.schedule_of = (numbers * len(own))(*(one.value for one in own))
        at = lambda array, row, size: ctypes.addressof(array) + 4 * row * size  # noqa: E731
        self.structs = (CSchedule * count)(
            *(
                CSchedule(
                    1, most, q_len, 0, 0, at(self.block, row, 4), at(self.runs, row, 4 * most), at(self.lo, row, q_len),
                    at(self.hi, row, q_len), None,
                )
                for row in range(count)
            )
        )  # fmt: skip
        self.call.schedules, self.call.schedule = count, ctypes.addressof(self.structs)
        self.call.schedule_of = ctypes.addressof(self.schedule_of) if count > 1 else None

    def place(self, bands: list[RowBand], keys: range, q_start: int | torch.Tensor | None) -> None:
        """Write the keys that each query may look at, as `Bands.bounds` gives them."""
        starts = _starts(q_start, self.problem.q_len, keys.stop)
        for row in range(self.count):
            first = starts[row if len(starts) > 1 else 0]
            if self.most == 1:
                self._place_one(row, first, bands[0], keys.stop)
            else:
                self._place_all(row, first, bands, keys.stop)

    def _place_one(self, row: int, first: int, band: RowBand, k_len: int) -> None:
        """The run of a batch row whose queries may look at one band."""
        q_len = self.problem.q_len
        low, high = band.span(row, k_len)
        at = row * q_len
        for i in range(q_len):
            self.lo[at + i], self.hi[at + i] = band.run(first + i, low, high)
        begin, end = self.lo[at], self.hi[at + q_len - 1]
        whole = begin == self.lo[at + q_len - 1] and self.hi[at] == end
        self.block[4 * row + 3] = int(begin < end)
        self.runs[4 * row : 4 * row + 4] = [begin, end, int(Kind.WHOLE if whole else Kind.BOUNDED), 0]
        self.structs[row].origin = low

    def _place_all(self, row: int, position: int, bands: list[RowBand], k_len: int) -> None:
        """The runs of the one query of a batch row that may look at several bands."""
        spans = [band.span(row, k_len) for band in bands]
        joined = union(range(*band.run(position, *span)) for band, span in zip(bands, spans, strict=True))
        numbers = [number for run in joined for number in (run.start, run.stop, int(Kind.WHOLE), 0)]
        at = 4 * self.most * row
        self.runs[at : at + len(numbers)] = numbers
        self.block[4 * row + 3] = len(joined)
        self.structs[row].origin = min((low for low, high in spans if low < high), default=0)
        self.structs[row].runs = len(joined)


def _starts(q_start: int | torch.Tensor | None, q_len: int, k_len: int) -> list[int]:
    """The position of the first query, one or by batch row."""
    return q_start.tolist() if isinstance(q_start, torch.Tensor) else [k_len - q_len if q_start is None else q_start]
