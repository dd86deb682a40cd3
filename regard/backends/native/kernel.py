"""Runs the kernel on tensors: fills the structs of a call, keeps them between calls, and differentiates."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.backends import flash
from regard.backends.composed import compose
from regard.backends.native.library import CCall, CGradients, CTensor, Library, threads
from regard.backends.native.lowering import Lowered, lower
from regard.backends.statistics.second_pass import compute_statistics
from regard.core.backend import Operands
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
        learning = torch.is_grad_enabled() and any(x.requires_grad for x in (operands.q, operands.k, operands.v))
        if learning:
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

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of q, k and v, in their dtypes."""
        if not operands.grid.keys:
            return torch.zeros_like(saved.q), torch.zeros_like(saved.k), torch.zeros_like(saved.v)
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
        self.library.backward(call, gradients)
        dq, dk, dv = (x.to(like.dtype) for x, like in zip(found, (saved.q, saved.k, saved.v), strict=True))
        return dq, dk, dv

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
        local.kept = kept
        return call

    def _new_call(self) -> CCall:
        problem = self.problem
        call = CCall(problem.batch, problem.heads, problem.kv_heads, problem.q_len, problem.head_dim, problem.v_dim)
        call.scale, call.softcap = problem.scale, problem.softcap or 0.0
        return call

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


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a dense last axis."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _like(x: torch.Tensor) -> torch.Tensor:
    """A gradient of x in float32 at least, in memory (batch, rows, heads, dim) as the fused operations return theirs."""
    batch, heads, rows, dim = x.shape
    return torch.empty(batch, rows, heads, dim, dtype=_wide(x), device="cpu").transpose(1, 2)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
