"""Fills the structs of the C interface with tensors. A plan keeps its call structs; a call whose tensors are laid out
as in the call before changes only their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from regard.backends.native.library import TYPES, CBias, CCall, CGradients, CTensor
from regard.backends.native.lowering import Lowered
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem
from regard.core.tensors import Stored

FEWEST = 1 << 18  # products of one thread; fewer are not worth waking another


class Filled:
    """A call struct, which one call uses at a time."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        call = self.call = CCall(
            problem.batch, problem.heads, problem.kv_heads, problem.q_len, problem.head_dim, problem.v_dim
        )
        call.scale, call.softcap, call.dropout = problem.scale, problem.softcap or 0.0, problem.dropout
        self.address = ctypes.byref(call)
        self.unsound = ctypes.c_int32(0)  # what the kernel found in the output of the call before
        call.unsound = ctypes.addressof(self.unsound)
        self.tensors = call.q, call.k, call.v, call.out
        self.layout: Any = None
        self.bias: Relative | None = None  # of the call before, unless it learns
        self._described: Any = None  # what the struct of that bias points at
        self._lowered: Lowered | None = None  # what the schedules of the struct point at
        self.most_threads = 1  # more would cost time; the result does not depend on it

    def fill(self, operands: Operands, lowered: Lowered, output: torch.Tensor, log_sum_exp: torch.Tensor | None) -> Any:
        """Write a call without statistics; returns what must live until it is computed."""
        call, keys = self.call, operands.grid.keys
        kept: list[Any] = []
        self._lowered = lowered  # the next call may change addresses only, so it lives as long as they do
        call.first_key, call.keys = keys.start, len(keys)
        problem = self.problem
        products = problem.batch * problem.heads * problem.q_len * len(keys) * (problem.head_dim + problem.v_dim)
        self.most_threads = max(1, products // FEWEST)
        call.threads = min(torch.get_num_threads(), self.most_threads)
        call.lists = None if lowered.lists is None else ctypes.addressof(lowered.lists[0])
        call.schedules, call.schedule = len(lowered.schedules), lowered.address
        call.schedule_of = None if lowered.schedule_of is None else lowered.schedule_of.data_ptr()
        q = dense(operands.q)
        describe(call.q, q)
        describe(call.out, output)
        kept += [q, describe_vectors(call.k, call.k_scale, operands.k)]
        kept += [describe_vectors(call.v, call.v_scale, operands.v)]
        call.log_sum_exp = None if log_sum_exp is None else log_sum_exp.data_ptr()
        call.statistics = None
        bias = operands.bias
        self.bias = bias if isinstance(bias, Relative) and not bias.table.requires_grad else None
        if bias is not None:
            described = _describe_bias(call.bias, operands, starts_of(problem, operands))
            kept.append(described)
            self._described = None if self.bias is None else described
        if problem.dropout or "distance" in problem.want:
            starts = starts_of(problem, operands)
            call.dropout_seed, call.start = operands.dropout_seed % 2**64, starts.data_ptr()
            kept.append(starts)
        return kept


def starts_of(problem: Problem, operands: Operands) -> torch.Tensor:
    start = operands.grid.q_start
    if isinstance(start, torch.Tensor):
        return start.to("cpu").contiguous()
    return torch.full((problem.batch,), start, dtype=torch.int64, device="cpu")


def describe(into: CTensor, x: torch.Tensor) -> None:
    """Write address, strides, dtype and extent of a tensor (batch, heads, rows, dim) with a dense last axis."""
    into.data = x.data_ptr()
    strides, (batch, heads, rows, _) = x.stride(), x.shape
    size = into.size = sum(stride * (size - 1) for stride, size in zip(strides, x.shape, strict=True)) + 1
    # The stride of an axis of one number may be any; with that of the whole tensor a second number lies outside.
    into.batch = strides[0] if batch > 1 else size
    into.head, into.row = strides[1] if heads > 1 else size, strides[2] if rows > 1 else size
    into.type = TYPES[x.dtype]


def describe_vectors(into: CTensor, scale: CTensor, x: torch.Tensor | Stored) -> Any:
    """Describe keys or values, and the scales of int8 ones; returns what must live until the call is computed."""
    if not isinstance(x, Stored):
        x = dense(x)
        describe(into, x)
        return x
    numbers = dense(x.numbers)
    describe(into, numbers)
    if x.scales is None:
        return numbers
    scales = x.scales.float()
    describe(scale, scales)
    return numbers, scales


def _describe_bias(into: CBias, operands: Operands, starts: torch.Tensor) -> Any:
    """Describe a bias; returns what must live until the call is computed."""
    bias = operands.bias
    if isinstance(bias, Relative):
        numbers = bias.table.detach().to(wide(operands.q)).contiguous()  # (heads or 1, distances)
        at = operands.grid.keys.start - bias.lowest - starts
        strides = (numbers.stride(0) if len(numbers) > 1 else 0, -1, 1)
        return _write_bias(into, numbers, at, strides)
    assert bias is not None
    return describe_bias(into, dense(bias.detach().to(wide(operands.q))), len(starts))


def describe_bias(into: CBias, numbers: torch.Tensor, batch: int) -> Any:
    """Describe a bias tensor (batch or 1, heads or 1, q_len or 1, keys or 1) in the kernel's dtype; returns what must
    live until the call is computed."""
    by_row, *strides = (0 if size == 1 else by for size, by in zip(numbers.shape, numbers.stride(), strict=True))
    return _write_bias(into, numbers, torch.arange(batch, device="cpu") * by_row, strides)


def _write_bias(into: CBias, numbers: torch.Tensor, at: torch.Tensor, strides: Sequence[int]) -> Any:
    into.data, into.at = numbers.data_ptr(), at.data_ptr()
    into.head, into.row, into.key = strides
    into.size = sum(by * (size - 1) for by, size in zip(numbers.stride(), numbers.shape, strict=True)) + 1
    return numbers, at


def fill_gradients(
    grad: torch.Tensor, slope: torch.Tensor | None, found: list[torch.Tensor], of_bias: torch.Tensor | None, table: bool
) -> CGradients:
    """The struct of a backward pass; its tensors must live until it is computed.

    Args:
        grad: the gradient of the output.
        slope: that of the log-sum-exp.
        found: room for the gradients of q, k and v.
        of_bias: zeros for that of the bias, of every pair or of the table of every batch row and head.
        table: whether it is that of a table.
    """
    into = CGradients()
    describe(into.dout, grad)
    into.dlog_sum_exp = None if slope is None else slope.data_ptr()
    for one, x in zip((into.dq, into.dk, into.dv), found, strict=True):
        describe(one, x)
    if of_bias is not None:
        describe(into.dtable if table else into.dbias, of_bias)
        if table:
            into.dtable.head = of_bias.shape[
                -1
            ]  # the size of a table, which the stride of one head alone does not give
    return into


def dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a dense last axis."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
