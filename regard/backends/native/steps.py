"""Calls of few queries over any number of keys, without a new plan for each: the steps of decoding.

While a cache grows, calls differ only in k_len and in the positions of their queries. For a band that is three numbers
for each batch row, so they are written into arrays that each thread keeps, and the kernel is called.
"""

from __future__ import annotations

import ctypes
import threading

import torch

from regard.backends.native.filling import FEWEST, Filled, dense, describe, describe_vectors
from regard.backends.native.library import CSchedule, Library
from regard.backends.native.lowering import Bands, bands_of
from regard.core.call import STEP, Call
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns.row_blocks import Kind

MOST_KEYS = 2**31 - 1


def steps_of(library: Library, problem: Problem) -> Steps | None:
    """The steps of calls like this problem; None where they need a plan for each k_len."""
    learning = problem.needs_grad or problem.bias_learns or problem.forward_mode
    watched = set(problem.want) - {"log_sum_exp"}
    if learning or watched or problem.bias is not None or problem.dropout or problem.q_len > STEP or problem.strict:
        return None
    bands = bands_of(problem.pattern, MOST_KEYS) if problem.pattern.by_value else None
    return None if bands is None else Steps(library, problem, bands)


class Steps:
    """The kernel for calls that differ from a problem in k_len and q_start only."""

    def __init__(self, library: Library, problem: Problem, bands: Bands) -> None:
        self.library, self.problem = library, problem
        self.left, self.right = bands.left, bands.right
        spans = torch.broadcast_tensors(bands.start, bands.stop)
        self.spans = list(zip(*(one.tolist() for one in spans), strict=True))  # of keys, one or by batch row
        self.summed = "log_sum_exp" in problem.want
        self._wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
        self._local = threading.local()

    def run(self, call: Call) -> Result:
        """Output, and the log-sum-exp if the problem wants it."""
        problem, q = self.problem, call.q
        k, v = (x if isinstance(x, Stored) else dense(x) for x in (call.k, call.v))
        k_len = k.shape[2]
        filled = self._filled(isinstance(call.q_start, torch.Tensor) or len(self.spans) > 1)
        filled.place(self, k_len, call.q_start)
        output = torch.empty(problem.batch, problem.q_len, problem.heads, problem.v_dim, dtype=q.dtype, device="cpu")
        output, q = output.transpose(1, 2), dense(q)
        lse = torch.empty(q.shape[:3], dtype=self._wide, device="cpu") if self.summed else None
        into = filled.call
        into.first_key = k.first if isinstance(k, Stored) else 0
        into.keys = k_len - into.first_key
        products = problem.batch * problem.heads * problem.q_len * k_len * (problem.head_dim + problem.v_dim)
        into.threads = min(torch.get_num_threads(), max(1, products // FEWEST))
        describe(into.q, q)
        describe(into.out, output)
        kept = describe_vectors(into.k, into.k_scale, k), describe_vectors(into.v, into.v_scale, v)
        into.log_sum_exp = None if lse is None else lse.data_ptr()
        self.library.forward(filled.address)
        del kept
        return Result(output, lse)

    def _filled(self, by_row: bool) -> _Filled:
        """The call struct of this thread, with a schedule for each batch row or for all of them."""
        name = "by_row" if by_row else "alike"
        if (found := getattr(self._local, name, None)) is None:
            found = _Filled(self.problem, self.problem.batch if by_row else 1)
            setattr(self._local, name, found)
        return found


class _Filled(Filled):
    """A call struct with the arrays of its schedules: one row block and one run in each."""

    def __init__(self, problem: Problem, count: int) -> None:
        super().__init__(problem)
        q_len, numbers = problem.q_len, ctypes.c_int32
        self.count = count
        self.block, self.runs = (numbers * (4 * count))(*([0, q_len, 0, 1] * count)), (numbers * (4 * count))()
        self.lo, self.hi = (numbers * (q_len * count))(), (numbers * (q_len * count))()
        own = [numbers(row) for row in range(count) for _ in range(problem.heads)]
        self.schedule_of = (numbers * len(own))(*(one.value for one in own))
        at = lambda array, row, size: ctypes.addressof(array) + 4 * row * size  # noqa: E731
        self.structs = (CSchedule * count)(
            *(
                CSchedule(
                    1, 1, q_len, 0, 0, at(self.block, row, 4), at(self.runs, row, 4), at(self.lo, row, q_len),
                    at(self.hi, row, q_len), None,
                )
                for row in range(count)
            )
        )  # fmt: skip
        self.call.schedules, self.call.schedule = count, ctypes.addressof(self.structs)
        self.call.schedule_of = ctypes.addressof(self.schedule_of) if count > 1 else None

    def place(self, steps: Steps, k_len: int, q_start: int | torch.Tensor | None) -> None:
        """Write the keys that each query may look at, as `Bands.bounds` gives them."""
        q_len, left, right, spans = self.problem.q_len, steps.left, steps.right, steps.spans
        starts = (
            q_start.tolist() if isinstance(q_start, torch.Tensor) else [k_len - q_len if q_start is None else q_start]
        )
        for row in range(self.count):
            start, stop = spans[row if len(spans) > 1 else 0]
            first = starts[row if len(starts) > 1 else 0]
            low = min(max(start, 0), k_len)
            high = max(min(stop, k_len), low)
            at = row * q_len
            for i in range(q_len):
                position = first + i
                lo = low if left is None else min(max(position - left, low), high)
                hi = high if right is None else min(max(position + right + 1, low), high)
                self.lo[at + i], self.hi[at + i] = lo, max(lo, hi)
            begin, end = self.lo[at], self.hi[at + q_len - 1]
            whole = begin == self.lo[at + q_len - 1] and self.hi[at] == end
            self.block[4 * row + 3] = int(begin < end)
            self.runs[4 * row : 4 * row + 4] = [begin, end, int(Kind.WHOLE if whole else Kind.BOUNDED), 0]
            self.structs[row].origin = low
