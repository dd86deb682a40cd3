"""Runs the kernel on tensors: fills the structs of a call, keeps them between calls, and differentiates."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.backends import flash
from regard.backends.composed import compose
from regard.backends.native.library import CBias, CCall, CGradients, CTensor, Library, threads
from regard.backends.native.lowering import Lowered, lower
from regard.backends.statistics.second_pass import compute_statistics
from regard.core.backend import Operands, Relative
from regard.core.problem import PER_ROW, Problem
from regard.core.result import Result
from regard.core.tensors import Stored

FEWEST = 1 << 16  # products of one thread; fewer are not worth waking another


@dataclass(frozen=True, eq=False)
class Kernel:
    """The kernel for one problem. `keep`: its schedules do not depend on tensors, so that calls share them."""

    library: Library
    problem: Problem
    keep: bool
    kept: dict[range, Lowered] = field(default_factory=dict)
    local: threading.local = field(default_factory=threading.local)

    def run(self, operands: Operands) -> Result:
        """Output and statistics."""
        problem = self.problem
        if torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(operands)):
            operands = operands.widened()
            output, log_sum_exp = compose(self, operands)
            output = output.to(operands.q.dtype)
        else:
            output, log_sum_exp = self.compute(operands, operands.q.dtype)
        if not problem.want:
            return Result(output)
        wanted: dict[str, Any] = {"log_sum_exp": log_sum_exp} if "log_sum_exp" in problem.want else {}
        if set(problem.want) - {"log_sum_exp"}:
            wanted |= compute_statistics(problem, operands.widened(), log_sum_exp)
        return Result(output, **wanted)

    def forward(self, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp in float32 at least, which the backward pass reads."""
        return self.compute(operands, _wide(operands.q))

    def compute(self, operands: Operands, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Output in a dtype and log-sum-exp in float32 at least, without a graph."""
        q, k, v = operands.q, operands.k, operands.v
        batch, heads, q_len, _ = q.shape
        if not operands.grid.keys:  # every row is empty
            return q.new_zeros(batch, heads, q_len, v.shape[-1], dtype=dtype), torch.full(
                q.shape[:3], -math.inf, device="cpu"
            )
        lowered = self._lowered(operands)
        output = q.new_empty(batch, q_len, heads, v.shape[-1], dtype=dtype).transpose(1, 2)
        log_sum_exp = torch.empty(batch, heads, q_len, dtype=_wide(q), device="cpu")
        call = self._call(operands, lowered, q, k, v, output)
        call.log_sum_exp = log_sum_exp.data_ptr()
        self.library.forward(call)
        return output, log_sum_exp

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v in their dtypes, and of the bias if it learns."""
        if not operands.grid.keys:
            learning = [saved.q, saved.k, saved.v, *([_bias_of(operands)] if self.problem.bias_learns else [])]
            return tuple(torch.zeros_like(x) for x in learning)
        lowered = self._lowered(operands)
        output, grad, slope = _dense(saved.output), _dense(saved.grad), saved.grad_log_sum_exp
        log_sum_exp = saved.log_sum_exp.contiguous()
        slope = None if slope is None else slope.to(log_sum_exp.dtype).contiguous()
        call = self._call(operands, lowered, saved.q, saved.k, saved.v, output)
        call.log_sum_exp = log_sum_exp.data_ptr()
        gradients = CGradients()
        gradients.dout.describe(grad)
        gradients.dlog_sum_exp = None if slope is None else slope.data_ptr()
        found = [_like(x) for x in (saved.q, saved.k, saved.v)]
        for into, x in zip((gradients.dq, gradients.dk, gradients.dv), found, strict=True):
            into.describe(x)
        of_bias = self._describe_bias_gradient(gradients, operands)
        self.library.backward(call, gradients)
        dq, dk, dv = (x.to(like.dtype) for x, like in zip(found, (saved.q, saved.k, saved.v), strict=True))
        return (dq, dk, dv) if of_bias is None else (dq, dk, dv, _reduced(of_bias, operands))

    def _describe_bias_gradient(self, into: CGradients, operands: Operands) -> torch.Tensor | None:
        """Zeros for the gradient of the bias of every pair, or of the table of every batch row and head."""
        problem, bias = self.problem, operands.bias
        if bias is None or not problem.bias_learns:
            return None
        wide, rows = _wide(operands.q), (problem.batch, problem.heads)
        if isinstance(bias, Relative):
            found = torch.zeros(*rows, 1, bias.table.shape[1], dtype=wide, device="cpu")
            into.dtable.describe(found)
        else:
            found = torch.zeros(*rows, problem.q_len, len(operands.grid.keys), dtype=wide, device="cpu")
            into.dbias.describe(found)
        return found

    def _lowered(self, operands: Operands) -> Lowered:
        keys = operands.grid.keys
        found = self.kept.get(keys)
        if found is None:
            start = operands.grid.q_start
            found = lower(self.problem, keys, start.tolist() if isinstance(start, torch.Tensor) else [start])
            if self.keep:
                self.kept[keys] = found
        return found

    def _call(self, operands: Operands, lowered: Lowered, q: Any, k: Any, v: Any, output: torch.Tensor) -> CCall:
        """The struct of this thread with these tensors; what it points at must live until the call returns."""
        local = self.local
        call = getattr(local, "call", None)
        if call is None:
            call = local.call = self._new_call()
        call.first_key, call.keys = operands.grid.keys.start, len(operands.grid.keys)
        call.threads = self._threads(len(operands.grid.keys))
        call.schedules, call.schedule = len(lowered.schedules), lowered.address
        call.schedule_of = None if lowered.schedule_of is None else lowered.schedule_of.data_ptr()
        q = _dense(q)
        call.q.describe(q)
        kept = [lowered, q, self._vectors(call.k, call.k_scale, k), self._vectors(call.v, call.v_scale, v)]
        call.out.describe(output)
        if operands.bias is not None:
            kept.append(self._describe_bias(call.bias, operands))
        if self.problem.dropout:
            starts = self._starts(operands)
            call.dropout_seed, call.start = operands.dropout_seed % 2**64, starts.data_ptr()
            kept.append(starts)
        local.kept = kept
        return call

    def _new_call(self) -> CCall:
        problem = self.problem
        call = CCall(problem.batch, problem.heads, problem.kv_heads, problem.q_len, problem.head_dim, problem.v_dim)
        call.scale, call.softcap, call.dropout = problem.scale, problem.softcap or 0.0, problem.dropout
        return call

    def _starts(self, operands: Operands) -> torch.Tensor:
        """The position of the first query of each batch row, (batch,) int64."""
        start = operands.grid.q_start
        if isinstance(start, torch.Tensor):
            return start.to("cpu").contiguous()
        return torch.full((self.problem.batch,), start, dtype=torch.int64, device="cpu")

    def _describe_bias(self, into: CBias, operands: Operands) -> Any:
        """Describe a bias; returns what must live until the call returns."""
        problem, bias = self.problem, operands.bias
        if isinstance(bias, Relative):
            numbers = bias.table.detach().to(_wide(operands.q)).contiguous()  # (heads or 1, distances)
            at = operands.grid.keys.start - bias.lowest - self._starts(operands)
            strides = (numbers.stride(0) if len(numbers) > 1 else 0, -1, 1)
        else:
            assert bias is not None
            numbers = bias.detach().to(_wide(operands.q))  # (batch or 1, heads or 1, q_len or 1, keys or 1)
            numbers = _dense(numbers)
            by_row, *strides = (
                0 if size == 1 else by for size, by in zip(numbers.shape, numbers.stride(), strict=True)
            )
            at = torch.arange(problem.batch, device="cpu") * by_row
        into.data, into.at = numbers.data_ptr(), at.data_ptr()
        into.head, into.row, into.key = strides
        into.size = numbers.untyped_storage().nbytes() // numbers.itemsize - numbers.storage_offset()
        return numbers, at

    def _threads(self, keys: int) -> int:
        problem = self.problem
        work = problem.batch * problem.heads * problem.q_len * keys * (problem.head_dim + problem.v_dim)
        return max(1, min(threads(), work // FEWEST))

    @staticmethod
    def _vectors(into: CTensor, scale: CTensor, x: torch.Tensor | Stored) -> Any:
        """Describe keys or values; returns what must live until the call returns."""
        numbers, scales = (x.numbers, x.scales) if isinstance(x, Stored) else (x, None)
        numbers = _dense(numbers)
        into.describe(numbers)
        if scales is None:
            return numbers
        scales = scales.float()
        scale.describe(scales)
        return numbers, scales


def keeps(problem: Problem) -> bool:
    """Whether the schedules of a problem are those of every call of it."""
    return problem.q_start is not PER_ROW


def _bias_of(operands: Operands) -> torch.Tensor:
    """The tensor of a bias, or its table."""
    bias = operands.bias
    assert bias is not None
    return bias.table if isinstance(bias, Relative) else bias


def _tensors(operands: Operands) -> list[Any]:
    """What gradients may reach."""
    return [operands.q, operands.k, operands.v, *([] if operands.bias is None else [_bias_of(operands)])]


def _reduced(gradient: torch.Tensor, operands: Operands) -> torch.Tensor:
    """The gradient of the bias from that of every pair, or of its table from those of every batch row and head."""
    like = _bias_of(operands)
    if isinstance(operands.bias, Relative):
        gradient = gradient[:, :, 0].sum(0)
    return gradient.sum_to_size(like.shape).to(like.dtype)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a dense last axis."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _like(x: torch.Tensor) -> torch.Tensor:
    """Room for a gradient of x in float32 at least, laid out as fused operations return it: (batch, rows, heads, dim)."""
    batch, heads, rows, dim = x.shape
    return torch.empty(batch, rows, heads, dim, dtype=_wide(x), device="cpu").transpose(1, 2)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
