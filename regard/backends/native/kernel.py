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
from regard.backends.native.filling import Filled, dense, fill_gradients, wide
from regard.backends.native.library import MOST_TOP, CStatistics, Library
from regard.backends.native.lowering import Lowered, lists_read, lower
from regard.backends.statistics.second_pass import (
    compute_statistics,
    differentiable,
    with_statistics,
)
from regard.core import costs
from regard.core.backend import Cost, Operands, Relative
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result, TopKeys, TopKeysFound, WeightsOf, requested


def computes_statistics(problem: Problem) -> bool:
    """Whether the kernel computes the requested statistics; many top keys of a row are left to the second pass."""
    top = requested(TopKeys, problem.want)
    return bool(set(problem.want) - {"log_sum_exp"}) and (top is None or top.count <= MOST_TOP)


class KernelStatistics:
    """Memory for the statistics that a problem requests, and the struct that points at it."""

    def __init__(self, problem: Problem, keys: range, dtype: torch.dtype) -> None:
        self._problem, self._dtype, self._struct = problem, dtype, CStatistics()
        self._made: dict[str, torch.Tensor] = {}
        self._slots: tuple[torch.Tensor, ...] = ()
        lines = problem.batch, problem.heads, problem.q_len
        for name, *shape in (
            ("entropy", *lines),
            ("distance", *lines),
            ("received", *lines[:2], len(keys)),
        ):
            if name in problem.want:
                self._make(name, *shape)
        if (top := requested(TopKeys, problem.want)) is not None:
            self._struct.top = min(top.count, len(keys))
            self._make("top_weights", *lines, self._struct.top)
            self._make("top_keys", *lines, self._struct.top, dtype=torch.int64).fill_(-1)
        chosen = requested(WeightsOf, problem.want)
        if chosen is not None:
            chosen.check(problem.heads, problem.q_len)
        if "weights" in problem.want or chosen is not None:
            whole = chosen is None or "weights" in problem.want
            heads = range(problem.heads) if whole or chosen.heads is None else chosen.heads
            rows = range(problem.q_len) if whole else chosen.rows
            self._make("weights", problem.batch, len(heads), len(rows), len(keys))
            self._struct.weight_heads, self._struct.weight_rows = len(heads), len(rows)
            self._slots = _slots(heads, problem.heads), _slots(rows, problem.q_len)
            self._struct.head_slot, self._struct.row_slot = (x.data_ptr() for x in self._slots)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._struct)

    def results(self) -> dict[str, Any]:
        """The statistics by their names in `Result`, once the kernel has run."""
        found: dict[str, Any] = dict(self._made)
        want = self._problem.want
        if (top := requested(TopKeys, want)) is not None:
            missing = (0, top.count - self._struct.top)
            pad = torch.nn.functional.pad
            weights = pad(found.pop("top_weights"), missing)
            found["top_keys"] = TopKeysFound(pad(found["top_keys"], missing, value=-1), weights)
        if (chosen := requested(WeightsOf, want)) is not None:
            if "weights" in want:
                heads = range(self._problem.heads) if chosen.heads is None else chosen.heads
                found["chosen_weights"] = found["weights"][:, list(heads)][:, :, list(chosen.rows)]
            else:
                found["chosen_weights"] = found.pop("weights")
        return found

    def _make(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros of which the struct has the address."""
        self._made[name] = made = torch.zeros(shape, dtype=dtype or self._dtype, device="cpu")
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
    usual = with_statistics(cost, problem)
    if not computes_statistics(problem) or problem.needs_grad or problem.bias_learns:
        return usual  # the second pass computes the gradients
    names = {"weights" if isinstance(want, WeightsOf) else want for want in problem.want} - {
        "log_sum_exp"
    }
    again = bool(names & {"received", "weights"})
    watched = bool(names - {"received", "weights"})
    by_pair = costs.KERNEL_STATISTICS_PAIR * watched
    by_pair += (2 * problem.head_dim + costs.KERNEL_WEIGHT_AGAIN) * again
    flops = cost.flops + cost.pairs * by_pair
    weights = 4 * problem.pairs if "weights" in problem.want else 0
    return replace(cost, flops=min(flops, usual.flops), peak_bytes=cost.peak_bytes + weights)


class Kernel:
    """The kernel for one problem."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self.library, self.problem = library, problem
        self.wide = torch.float64 if problem.dtype == torch.float64 else torch.float32
        # Whether calls differ only in q, k and v, and in a bias by distance where its numbers are not kept.
        self._plain = (
            problem.bias in (None, RELATIVE)
            and not problem.dropout
            and problem.q_start is not PER_ROW
        )
        self._plain &= "distance" not in problem.want
        self._has_statistics = bool(set(problem.want) - {"log_sum_exp"})
        self._in_kernel = computes_statistics(problem)
        self._kept: dict[tuple[range, bool], Lowered] = {}
        listed = lists_read(problem)
        self._in_tiles = (
            listed is not None and listed.in_tiles
        )  # only the forward pass reads such lists
        self._spare: list[Filled] = []  # structs that no call uses now

    def run(self, operands: Operands) -> Result:
        want = self.problem.want
        q, k, v, bias = operands.q, operands.k, operands.v, operands.bias
        asked = (
            KernelStatistics(self.problem, operands.grid.keys, self.wide)
            if self._in_kernel
            else None
        )
        if torch.is_grad_enabled() and (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (bias is not None and _of_bias(bias).requires_grad)
        ):
            if not isinstance(k, torch.Tensor):
                operands = operands.widened()
            one = Differentiated(self, asked)
            output, log_sum_exp = compose(one, operands, sums=bool(want))
            sound = one.sound
            output = output if output.dtype == q.dtype else output.to(q.dtype)
            found = (
                {}
                if asked is None
                else differentiable(self.problem, operands, log_sum_exp, asked.results())
            )
        else:
            output, log_sum_exp, _, sound = self.compute(operands, q.dtype, bool(want), asked)
            found = {} if asked is None else asked.results()
        if not want:
            return Result(output, sound=sound)
        wanted: dict[str, Any] = {"log_sum_exp": log_sum_exp} if "log_sum_exp" in want else {}
        if self._has_statistics and asked is None:
            found = compute_statistics(self.problem, operands, log_sum_exp)
        return Result(output, **wanted, **found, sound=sound)

    def compute(
        self,
        operands: Operands,
        dtype: torch.dtype,
        summed: bool,
        asked: KernelStatistics | None = None,
    ) -> tuple[torch.Tensor, Any, Any, bool]:
        """Output in a dtype, without a graph; if `summed` the log-sum-exp in float32 at least and what it is made of,
        else None; and whether the output is finite.

        The statistics that are asked for are written to their memory. The call takes a struct that no other call uses,
        and returns it at its end: what an exception left half written is never used again, and a call that begins
        inside another one has a struct of its own.
        """
        q, k, v = operands.q, operands.k, operands.v
        batch, heads, q_len, _ = q.shape
        log_sum_exp = row_sums = None
        if summed:
            log_sum_exp = torch.empty(batch, heads, q_len, dtype=self.wide, device="cpu")
            row_sums = torch.empty(2, batch, heads, q_len, dtype=self.wide, device="cpu")
        if not operands.grid.keys:  # every row is empty
            none = q.new_zeros(batch, heads, q_len, self.problem.v_dim, dtype=dtype)
            return none, None if log_sum_exp is None else log_sum_exp.fill_(-math.inf), None, True
        v_dim = self.problem.v_dim
        strides = (
            q_len * heads * v_dim,
            v_dim,
            heads * v_dim,
            1,
        )  # it lies as (batch, q_len, heads, v_dim)
        output = torch.empty_strided(
            (batch, heads, q_len, v_dim), strides, dtype=dtype, device="cpu"
        )
        try:
            filled = self._spare.pop()
        except IndexError:
            filled = Filled(self.problem)
        layout = None
        if self._plain and type(k) is torch.Tensor and type(v) is torch.Tensor:
            layout = q.stride(), k.stride(), v.stride(), q.dtype, dtype
        if (
            layout is not None and layout == filled.layout and operands.bias is filled.bias
        ):  # only the addresses differ from the call before
            for into, x in zip(filled.tensors, (q, k, v, output), strict=True):
                into.data = x.data_ptr()
            filled.call.log_sum_exp = None if log_sum_exp is None else log_sum_exp.data_ptr()
            filled.call.row_sums = None if row_sums is None else row_sums.data_ptr()
            filled.call.threads = min(torch.get_num_threads(), filled.most_threads)
            kept = None
        else:
            kept = filled.fill(operands, self._lowered(operands), output, log_sum_exp, row_sums)
            dense_already = (
                layout is not None and layout[0][-1] == layout[1][-1] == layout[2][-1] == 1
            )
            filled.layout = layout if dense_already else None
        filled.call.statistics = None if asked is None else asked.address
        self.library.forward(filled.address)
        del kept
        sound = not filled.unsound.value
        self._spare.append(filled)
        return output, log_sum_exp, row_sums, sound

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v in their dtypes, and of the bias if it learns."""
        learning = [
            saved.q,
            saved.k,
            saved.v,
            *([_of_bias(operands.bias)] if self.problem.bias_learns else []),
        ]
        if not operands.grid.keys:
            return tuple(torch.zeros_like(x) for x in learning)
        grad = dense(saved.grad)
        log_sum_exp = saved.log_sum_exp.contiguous()
        slope = saved.grad_log_sum_exp
        slope = None if slope is None else slope.to(log_sum_exp.dtype).contiguous()
        found = [_room_for(x) for x in learning[:3]]
        of_bias = self._bias_gradient(operands)
        filled = Filled(self.problem)
        kept = filled.fill(
            operands,
            self._lowered(operands, True),
            dense(saved.output),
            log_sum_exp,
            saved.row_sums,
        )
        gradients = fill_gradients(grad, slope, found, of_bias, isinstance(operands.bias, Relative))
        self.library.backward(filled.address, gradients)
        del kept
        if of_bias is not None:
            found.append(_reduced(of_bias, operands))
        return tuple(x.to(like.dtype) for x, like in zip(found, learning, strict=True))

    def _lowered(self, operands: Operands, backward: bool = False) -> Lowered:
        keys = operands.grid.keys
        backward = backward and self._in_tiles
        if (found := self._kept.get((keys, backward))) is not None:
            return found
        start = operands.grid.q_start
        if isinstance(start, torch.Tensor):
            return lower(self.problem, keys, start.tolist(), backward)
        lowered = lower(self.problem, keys, [start], backward)
        return self._kept.setdefault((keys, backward), lowered)  # the same in every thread

    def _bias_gradient(self, operands: Operands) -> torch.Tensor | None:
        """Zeros for the gradient of the bias of every pair, or of the table of every batch row and head."""
        problem = self.problem
        bias = operands.bias
        if bias is None or not problem.bias_learns:
            return None
        last = (
            (1, bias.table.shape[1])
            if isinstance(bias, Relative)
            else (problem.q_len, len(operands.grid.keys))
        )
        return torch.zeros(problem.batch, problem.heads, *last, dtype=self.wide, device="cpu")


@dataclass
class Differentiated:
    """The kernel in one call with gradients, whose forward pass may write statistics too."""

    kernel: Kernel
    asked: KernelStatistics | None = None
    sound: bool = True  # whether the output is finite

    @property
    def problem(self) -> Problem:
        return self.kernel.problem

    def forward(self, operands: Operands) -> flash.Computed:
        """Output and log-sum-exp in float32 at least, which the backward pass reads."""
        output, log_sum_exp, row_sums, self.sound = self.kernel.compute(
            operands, self.kernel.wide, True, self.asked
        )
        return flash.Computed(output, log_sum_exp, row_sums)

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        return self.kernel.backward(operands, saved)


def _of_bias(bias: torch.Tensor | Relative | None) -> torch.Tensor:
    assert bias is not None
    return bias.table if isinstance(bias, Relative) else bias


def _reduced(gradient: torch.Tensor, operands: Operands) -> torch.Tensor:
    """The gradient of the bias from that of every pair, or of its table from those of every batch row and head."""
    if isinstance(operands.bias, Relative):
        gradient = gradient[:, :, 0].sum(0)
    return gradient.sum_to_size(_of_bias(operands.bias).shape)


def _room_for(x: torch.Tensor) -> torch.Tensor:
    """Memory for a gradient of x, laid out as fused operations return it: (batch, rows, heads, dim)."""
    batch, heads, rows, dim = x.shape
    return torch.empty(batch, rows, heads, dim, dtype=wide(x), device="cpu").transpose(1, 2)
