"""Runs the kernel on tensors, with the statistics that a call requests, and differentiates what it computes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.backends import flash
from regard.backends.composed import compose
from regard.backends.native.bands import row_band_of_problem
from regard.backends.native.both_passes import BothPasses, pass_functions
from regard.backends.native.filling import (
    KernelCall,
    Schedules,
    accumulation_dtype,
    dense,
    fill_gradients,
    output_layout,
)
from regard.backends.native.library import MOST_TOP, CStatistics, Library
from regard.backends.native.lowering import Lowered, LoweredWindows, lists_to_read, lower
from regard.backends.native.row_keys import RowSchedules
from regard.backends.statistics.second_pass import (
    compute_statistics,
    differentiable,
    with_statistics,
)
from regard.core import costs
from regard.core.backend import Cost, Operands, Relative
from regard.core.hidden import LIMIT, LIMITS
from regard.core.newest import Newest
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result, TopKeys, TopKeysFound, WeightsOf, requested
from regard.patterns.row_keys import RowKeys


def computes_statistics(problem: Problem) -> bool:
    """Whether the kernel computes the requested statistics; many top keys of a row are left to the second pass."""
    top = requested(TopKeys, problem.want)
    has_statistics = bool(set(problem.want) - {"log_sum_exp"})
    return has_statistics and (top is None or top.count <= MOST_TOP)


class KernelStatistics:
    """Memory for the statistics that a problem requests, and the struct that points at it."""

    def __init__(self, problem: Problem, keys: range, dtype: torch.dtype) -> None:
        self._problem = problem
        self._dtype = dtype
        self._struct = CStatistics()
        self._made: dict[str, torch.Tensor] = {}
        self._slots: tuple[torch.Tensor, ...] = ()
        rows = problem.batch, problem.heads, problem.q_len
        shapes = {
            "entropy": rows,
            "distance": rows,
            "received": (problem.batch, problem.heads, len(keys)),
        }
        for name, shape in shapes.items():
            if name in problem.want:
                self._make(name, *shape)
        top = requested(TopKeys, problem.want)
        if top is not None:
            count = min(top.count, len(keys))
            self._struct.top = count
            self._make("top_weights", *rows, count)
            self._make("top_keys", *rows, count, dtype=torch.int64).fill_(-1)
        self._make_weights(keys)

    def _make_weights(self, keys: range) -> None:
        """Memory for the weights of all pairs, or of the heads and rows that are chosen."""
        problem = self._problem
        chosen = requested(WeightsOf, problem.want)
        if chosen is not None:
            chosen.check(problem.heads, problem.q_len)
        heads: Sequence[int] = range(problem.heads)
        rows: Sequence[int] = range(problem.q_len)
        if "weights" not in problem.want:
            if chosen is None:
                return
            heads = heads if chosen.heads is None else chosen.heads
            rows = chosen.rows
        self._make("weights", problem.batch, len(heads), len(rows), len(keys))
        self._slots = (_slots(heads, problem.heads), _slots(rows, problem.q_len))
        head_slots, row_slots = self._slots
        self._struct.weight_heads = len(heads)
        self._struct.weight_rows = len(rows)
        self._struct.head_slot = head_slots.data_ptr()
        self._struct.row_slot = row_slots.data_ptr()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._struct)

    def results(self) -> dict[str, Any]:
        """The statistics by their names in `Result`, once the kernel has run."""
        statistics: dict[str, Any] = dict(self._made)
        want = self._problem.want
        top = requested(TopKeys, want)
        if top is not None:
            missing = (0, top.count - self._struct.top)
            pad = torch.nn.functional.pad
            weights = pad(statistics.pop("top_weights"), missing)
            keys = pad(statistics["top_keys"], missing, value=-1)
            statistics["top_keys"] = TopKeysFound(keys, weights)
        chosen = requested(WeightsOf, want)
        if chosen is None:
            return statistics
        if "weights" not in want:
            statistics["chosen_weights"] = statistics.pop("weights")
            return statistics
        heads = range(self._problem.heads) if chosen.heads is None else chosen.heads
        weights_of_heads = statistics["weights"][:, list(heads)]
        statistics["chosen_weights"] = weights_of_heads[:, :, list(chosen.rows)]
        return statistics

    def _make(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros of which the struct has the address."""
        made = torch.zeros(shape, dtype=dtype or self._dtype, device="cpu")
        self._made[name] = made
        setattr(self._struct, name, made.data_ptr())
        return made


def _slots(chosen: Sequence[int], size: int) -> torch.Tensor:
    """The place of each number below `size` among the chosen ones, -1 where it is not among them."""
    slots = torch.full((size,), -1, dtype=torch.int32, device="cpu")
    slots[list(chosen)] = torch.arange(len(chosen), dtype=torch.int32, device="cpu")
    return slots


def with_kernel_statistics(cost: Cost, problem: Problem) -> Cost:
    """The cost of a call with its statistics, given the cost of its output.

    It is never above what the second pass adds to every backend, so that a call with statistics is computed by the same
    backend as one without, and has the same bits.
    """
    if not problem.want:
        return cost
    usual = with_statistics(cost, problem)
    if not computes_statistics(problem) or problem.needs_grad or problem.bias_learns:
        return usual  # the second pass computes the gradients
    flops_per_pair = 0.0
    if any(not _reads_weights_again(want) for want in set(problem.want) - {"log_sum_exp"}):
        flops_per_pair += costs.KERNEL_STATISTICS_PAIR
    if any(_reads_weights_again(want) for want in problem.want):
        flops_per_pair += 2 * problem.head_dim + costs.KERNEL_WEIGHT_AGAIN
    flops = cost.flops + cost.pairs * flops_per_pair
    weight_bytes = 4 * problem.pairs if "weights" in problem.want else 0
    return replace(cost, flops=min(flops, usual.flops), peak_bytes=cost.peak_bytes + weight_bytes)


def _reads_weights_again(want: Any) -> bool:
    """Whether a statistic needs the weights themselves, for which the kernel computes scores a second time."""
    return want in ("received", "weights") or isinstance(want, WeightsOf)


class Kernel:
    """The kernel for one problem.

    windows: those into which its pattern divides the positions, if the kernel is to read them.
    """

    def __init__(
        self, library: Library, problem: Problem, windows: LoweredWindows | None = None
    ) -> None:
        self.library = library
        self.problem = problem
        self.windows = windows
        self.accumulation_dtype = accumulation_dtype(problem.dtype)
        self._output_layout = output_layout(problem)
        # Whether calls differ only in q, k and v, and in a bias by distance where its numbers are not kept.
        self._is_plain = (
            problem.bias in (None, RELATIVE)
            and not problem.dropout
            and problem.q_start is not PER_ROW
            and "distance" not in problem.want
        )
        self._has_gradients = problem.needs_grad or problem.bias_learns
        self._has_statistics = bool(set(problem.want) - {"log_sum_exp"})
        self._computes_statistics = self._has_statistics and computes_statistics(problem)
        # By the keys of the call, and whether it is for a backward pass that reads no tiles of lists.
        self._lowered: dict[tuple[range, bool], Lowered] = {}
        # What the costs of the kernel depend on as well.
        self.band = row_band_of_problem(problem)
        self.lists = None if self.band is not None else lists_to_read(problem)
        self._reads_tiles = self.lists is not None and self.lists.in_tiles
        # Structs that no call uses. A call takes one by `pop`, which no other thread can divide, and gives it back when
        # it is computed: what an exception left half written is never used again, and a call that begins inside another
        # one has a struct of its own.
        self._spare: list[KernelCall] = []
        # By the keys of the call and the position of its first query.
        self._kept_passes: Newest[BothPasses] = Newest(64)

    def run(self, operands: Operands) -> Result:
        q = operands.q
        k = operands.k
        v = operands.v
        bias = operands.bias
        want = self.problem.want
        statistics = None
        if self._computes_statistics:
            keys = operands.grid.keys
            statistics = KernelStatistics(self.problem, keys, self.accumulation_dtype)
        results: dict[str, Any] = {}

        if torch.is_grad_enabled() and (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (bias is not None and _numbers_of(bias).requires_grad)
        ):
            if not isinstance(k, torch.Tensor):
                operands = operands.widened()
            differentiated = Differentiated(self, statistics)
            output, log_sum_exp = compose(differentiated, operands, sums=bool(want))
            sound = differentiated.sound
            output = output if output.dtype == q.dtype else output.to(q.dtype)
            if statistics is not None:
                results = statistics.results()
                results = differentiable(self.problem, operands, log_sum_exp, results)
        else:
            output, log_sum_exp, _, sound = self.compute(operands, q.dtype, bool(want), statistics)
            if statistics is not None:
                results = statistics.results()

        if not want:
            return Result(output, sound=sound)
        if self._has_statistics and statistics is None:
            results = compute_statistics(self.problem, operands, log_sum_exp)
        if "log_sum_exp" in want:
            results = {"log_sum_exp": log_sum_exp, **results}
        return Result(output, **results, sound=sound)

    def compute(
        self,
        operands: Operands,
        dtype: torch.dtype,
        summed: bool,
        statistics: KernelStatistics | None = None,
    ) -> tuple[torch.Tensor, Any, Any, bool]:
        """Output in a dtype, without a graph; if `summed` the log-sum-exp in float32 at least and what it is made of,
        else None; and whether the output is finite. The statistics are written to their memory.

        Every call passes here, so it calls as few functions as it can, and returns a plain tuple.
        """
        q = operands.q
        k = operands.k
        v = operands.v
        if summed and statistics is None and dtype == self.accumulation_dtype:
            calls = self._both_passes(operands)
            pattern = operands.pattern
            row_keys = None if pattern is None else pattern.row_keys
            results = None if calls is None else calls.forward(q, k, v, row_keys)
            if results is not None:
                output, log_sum_exp, row_sums, is_sound = results
                return output, log_sum_exp, row_sums, bool(is_sound)
        log_sum_exp = None
        row_sums = None
        if summed:
            shape = q.shape[:3]
            log_sum_exp = torch.empty(shape, dtype=self.accumulation_dtype, device="cpu")
            row_sums = torch.empty(2, *shape, dtype=self.accumulation_dtype, device="cpu")
        if not operands.grid.keys:  # every row is empty
            output = q.new_zeros(*q.shape[:3], self.problem.v_dim, dtype=dtype)
            return output, None if log_sum_exp is None else log_sum_exp.fill_(-math.inf), None, True
        output = torch.empty_strided(*self._output_layout, dtype=dtype, device="cpu")
        try:
            kernel_call = self._spare.pop()
        except IndexError:
            kernel_call = KernelCall(self.problem)
        struct = kernel_call.struct
        layout = None
        if self._is_plain and type(k) is torch.Tensor and type(v) is torch.Tensor:
            layout = q.stride(), k.stride(), v.stride(), q.dtype, dtype
            if operands.pattern is not None:
                layout += (k.shape[2],)

        if (
            layout is not None
            and layout == kernel_call.layout
            and operands.bias is kernel_call.bias
        ):
            # Only the addresses differ from the call before.
            for tensor_struct, x in zip(kernel_call.tensors, (q, k, v, output), strict=True):
                tensor_struct.data = x.data_ptr()
            struct.log_sum_exp = None if log_sum_exp is None else log_sum_exp.data_ptr()
            struct.row_sums = None if row_sums is None else row_sums.data_ptr()
            struct.threads = min(torch.get_num_threads(), kernel_call.most_threads)
            if operands.pattern is not None:
                kernel_call.write_schedules(self._lower(operands, room=kernel_call.lowered))
        else:
            lowered = self._lower(operands, room=kernel_call.lowered)
            kernel_call.fill(operands, lowered, output, log_sum_exp, row_sums)
            kernel_call.layout = None
            if layout is not None and q.stride(3) == k.stride(3) == v.stride(3) == 1:
                kernel_call.layout = layout  # copies of other tensors lie elsewhere in each call
        struct.statistics = None if statistics is None else statistics.address
        self.library.forward(kernel_call.address)
        kernel_call.borrowed.clear()
        sound = not kernel_call.unsound.value
        if operands.pattern is not None and self._has_gradients:
            sound = sound and not self._hides_extreme(kernel_call)
        self._spare.append(kernel_call)
        return output, log_sum_exp, row_sums, sound

    def repeatable(self, operands: Operands) -> KernelCall | None:
        """The struct of calls that differ from this one in the addresses of q, k, v and output only.

        With a pattern among the operands, they may differ in the keys of batch rows too, whose schedules are written
        into the struct for each call. None where more may differ. No other call uses the struct, and it has no address
        of a tensor of this one.
        """
        q = operands.q
        k = operands.k
        v = operands.v
        if not self._is_plain or self._has_gradients or self.problem.want:
            return None
        if not type(q) is type(k) is type(v) is torch.Tensor or not operands.grid.keys:
            return None
        if operands.bias is not None:
            return None
        if not q.stride(3) == k.stride(3) == v.stride(3) == 1:  # the kernel reads copies
            return None

        kernel_call = KernelCall(self.problem)
        output = torch.empty_strided(*self._output_layout, dtype=q.dtype, device="cpu")
        kernel_call.fill(operands, self._lower(operands), output, None)
        for tensor_struct in kernel_call.tensors:
            tensor_struct.data = None
        kernel_call.borrowed.clear()
        return kernel_call

    def backward(self, operands: Operands, saved: flash.BackwardInputs) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v in their dtypes, and of the bias if it learns."""
        inputs = [saved.q, saved.k, saved.v]
        if self.problem.bias_learns:
            inputs.append(_numbers_of(operands.bias))
        if not operands.grid.keys:
            return tuple(torch.zeros_like(x) for x in inputs)
        log_sum_exp = saved.log_sum_exp.contiguous()
        grad = dense(saved.grad)
        slope = saved.grad_log_sum_exp
        if slope is not None:
            slope = slope.to(log_sum_exp.dtype).contiguous()
        calls = self._both_passes(operands)
        if calls is not None and saved.row_sums is not None:
            sums = saved.output, log_sum_exp, saved.row_sums
            found = calls.gradients(*inputs, *sums, grad, slope, _row_keys(operands))
            if found is not None:
                return _in_dtypes_of(inputs, found)
        grads = [_room_for(x) for x in inputs[:3]]
        grad_bias = self._bias_gradient(operands)

        kernel_call = KernelCall(self.problem)
        lowered = self._lower(operands, backward=True)
        output = dense(saved.output)
        kernel_call.fill(operands, lowered, output, log_sum_exp, saved.row_sums)
        is_table = isinstance(operands.bias, Relative)
        gradients = fill_gradients(grad, slope, grads, grad_bias, is_table)
        self.library.backward(kernel_call.address, gradients)
        kernel_call.borrowed.clear()

        if grad_bias is not None:
            grads.append(_reduce_bias_gradient(grad_bias, operands))
        return _in_dtypes_of(inputs, grads)

    def _both_passes(self, operands: Operands) -> BothPasses | None:
        """What computes both passes of such calls without Python; None where they differ in more than their tensors."""
        functions = pass_functions()
        start = operands.grid.q_start
        keys = operands.grid.keys
        differs = (
            not self._is_plain
            or self.lists is not None
            or operands.bias is not None
            or not isinstance(start, int)
            or not keys
        )
        if functions is None or differs or type(operands.k) is not torch.Tensor:
            return None
        known = self._kept_passes.get((keys, start))
        if known is not None:
            return known
        kernel_call = KernelCall(self.problem)
        row_keys = _row_keys(operands)
        if row_keys is None:
            kernel_call.write_schedules(self._lower(operands))
        calls = BothPasses(functions, kernel_call, keys, start, row_keys)
        return self._kept_passes.keep((keys, start), calls)

    def _lower(self, operands: Operands, backward: bool = False, room: Any = None) -> Schedules:
        """The schedules of a call, kept where they depend on no position and no key of a batch row.

        Keys of batch rows are written into the room of an earlier call, if there is one.
        """
        if self.windows is not None:
            return self.windows.lowered
        keys = operands.grid.keys
        start = operands.grid.q_start
        if operands.pattern is not None:
            schedules = room or RowSchedules(self.library, self.problem)
            row_keys = operands.pattern.row_keys
            assert row_keys is not None
            schedules.write(row_keys, keys.stop, start)
            return schedules
        name = keys, backward and self._reads_tiles
        known = self._lowered.get(name)
        if known is not None:
            return known
        if isinstance(start, torch.Tensor):
            return lower(self.problem, keys, start.tolist(), name[1])
        lowered = lower(self.problem, keys, [start], name[1])
        return self._lowered.setdefault(name, lowered)  # the same in every thread

    def _hides_extreme(self, kernel_call: KernelCall) -> bool:
        """Whether a key or value that no query may look at is so large that a gradient of others could be NaN."""
        problem = self.problem
        schedules = kernel_call.lowered
        assert isinstance(schedules, RowSchedules)
        limit = LIMITS.get(problem.dtype, LIMIT)
        struct = kernel_call.struct
        heads = problem.kv_heads
        return schedules.hides_extreme(
            struct.k, heads, problem.head_dim, limit
        ) or schedules.hides_extreme(struct.v, heads, problem.v_dim, limit)

    def _bias_gradient(self, operands: Operands) -> torch.Tensor | None:
        """Zeros for the gradient of the bias of every pair, or of the table of every batch row and head."""
        problem = self.problem
        bias = operands.bias
        if bias is None or not problem.bias_learns:
            return None
        rows = problem.q_len
        columns = len(operands.grid.keys)
        if isinstance(bias, Relative):
            rows = 1
            columns = bias.table.shape[1]
        shape = problem.batch, problem.heads, rows, columns
        return torch.zeros(shape, dtype=self.accumulation_dtype, device="cpu")


@dataclass
class Differentiated:
    """The kernel in one call with gradients, whose forward pass may write statistics too."""

    kernel: Kernel
    statistics: KernelStatistics | None = None
    sound: bool = True  # whether the output is finite
    _operands: Operands | None = None

    @property
    def problem(self) -> Problem:
        """The problem of the call, which a second derivative reads."""
        problem = self.kernel.problem
        if self._operands is None or self._operands.pattern is None:
            return problem
        pattern = self._operands.pattern.canonical()
        return replace(problem, pattern=pattern, k_len=self._operands.grid.k_len)

    def forward(self, operands: Operands) -> flash.OutputAndSums:
        """Output and log-sum-exp in float32 at least, which the backward pass reads."""
        self._operands = operands
        output, log_sum_exp, row_sums, self.sound = self.kernel.compute(
            operands, self.kernel.accumulation_dtype, True, self.statistics
        )
        return flash.OutputAndSums(output, log_sum_exp, row_sums)

    def backward(self, operands: Operands, saved: flash.BackwardInputs) -> tuple[torch.Tensor, ...]:
        return self.kernel.backward(operands, saved)


def _row_keys(operands: Operands) -> RowKeys | None:
    """The keys of batch rows where they are data of the call; None where the problem's pattern has them."""
    return None if operands.pattern is None else operands.pattern.row_keys


def _numbers_of(bias: torch.Tensor | Relative | None) -> torch.Tensor:
    """The tensor of a bias: itself, or its table."""
    assert bias is not None
    return bias.table if isinstance(bias, Relative) else bias


def _reduce_bias_gradient(gradient: torch.Tensor, operands: Operands) -> torch.Tensor:
    """The gradient of the bias from that of every pair, or of its table from those of every batch row and head."""
    if isinstance(operands.bias, Relative):
        gradient = gradient[:, :, 0].sum(0)
    return gradient.sum_to_size(_numbers_of(operands.bias).shape)


def _in_dtypes_of(
    inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The gradients in the dtypes of their inputs."""
    converted = []
    for x, like in zip(gradients, inputs, strict=True):
        converted.append(x if x.dtype == like.dtype else x.to(like.dtype))
    return tuple(converted)


def _room_for(x: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of x, with a dense last axis.

    Its axes have the order of those of x, where that is possible, so that autograd need not copy the gradient.
    """
    dtype = accumulation_dtype(x.dtype)
    room = torch.empty_like(x, dtype=dtype, device="cpu")
    if dense(room) is room:
        return room
    return torch.empty(x.shape, dtype=dtype, device="cpu")
