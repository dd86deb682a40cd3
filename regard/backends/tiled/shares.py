"""Divides the batch rows and heads of a call into shares with one pattern each, and runs the programs of each share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from regard.backends import flash
from regard.backends.composed import KeptMasks, compose
from regard.backends.statistics.second_pass import result_of
from regard.backends.tiled.execution import Setting, backward, forward
from regard.backends.tiled.kernels import Kernels
from regard.backends.tiled.program import Program
from regard.backends.tiled.views import Tensors
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem
from regard.core.result import Result


@dataclass(frozen=True, eq=False)
class Share:
    """The batch rows and query heads that share one pattern, and their programs forward and backward."""

    rows: slice
    heads: tuple[int, ...] | None  # None for all of them
    ahead: Program
    back: Program | None

    @cached_property
    def is_whole(self) -> bool:
        """Whether it contains every batch row and head."""
        return self.heads is None and self.rows == slice(None)


@dataclass(frozen=True, eq=False)
class TiledCalls:
    """The programs of every share, with the masks and views that do not depend on tensors' values."""

    problem: Problem
    shares: tuple[Share, ...]
    computing: torch.dtype
    masks: KeptMasks = field(default_factory=KeptMasks)
    calls: dict[Any, Any] = field(default_factory=dict)
    kernels: Kernels | None = None

    def run(self, operands: Operands) -> Result:
        """Output and statistics."""
        problem, dtype = self.problem, operands.q.dtype
        if dtype.itemsize == 2 and self.computing != dtype:
            operands = operands._replace(**{name: getattr(operands, name).to(self.computing) for name in "qkv"})
        output, log_sum_exp = compose(self, operands, sums=bool(problem.want))
        output = output if output.dtype == dtype else output.to(dtype)
        return result_of(problem, operands, output, log_sum_exp) if problem.want else Result(output)

    def forward(self, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = operands.q, operands.k, operands.v
        output = q.new_empty(*q.shape[:3], v.shape[-1])
        log_sum_exp = q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        for share in self.shares:
            setting = self._setting(share, operands)
            if share.is_whole:  # results are written in place
                heads = (k.shape[1], q.shape[1] // k.shape[1])
                own_q, *own = (x.unflatten(1, heads).flatten(0, 1) for x in (q, output, log_sum_exp))
                forward(share.ahead, Tensors(own_q, k.flatten(0, 1), v.flatten(0, 1), *own), setting)
                continue
            own_q, *own = (_queries(share, x, k.shape[1]) for x in (q, output, log_sum_exp))
            forward(share.ahead, Tensors(own_q, _keys(share, k, q), _keys(share, v, q), *own), setting)
            _set(share, output, own[0])
            _set(share, log_sum_exp, own[1])
        return output, log_sum_exp

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, grad_lse = saved.q, saved.k, saved.v, saved.grad_log_sum_exp
        sums = torch.empty_like(q), *(torch.zeros_like(x, dtype=saved.log_sum_exp.dtype) for x in (k, v))
        for share in self.shares:
            names = ("q", "output", "log_sum_exp", "grad")
            own = {name: _queries(share, getattr(saved, name), k.shape[1]) for name in names}
            lse = None if grad_lse is None else _queries(share, grad_lse, k.shape[1])
            here = flash.Saved(**own, k=_keys(share, k, q), v=_keys(share, v, q), grad_log_sum_exp=lse)
            dq, dk, dv = backward(share.back or share.ahead, here, self._setting(share, operands))
            _set(share, sums[0], dq)
            _add_keys(share, sums[1], dk, q)
            _add_keys(share, sums[2], dv, q)
        return sums[0], sums[1].to(k.dtype), sums[2].to(v.dtype)

    def _setting(self, share: Share, operands: Operands) -> Setting:
        q, k, scale = operands.q, operands.k, self.problem.scale
        bias = operands.bias if isinstance(operands.bias, Relative) else None
        if share.heads is None:
            return Setting(scale, bias, k.shape[1], q.shape[1] // k.shape[1], 1, self.masks, self.calls, self.kernels)
        if bias is not None and len(bias.table) > 1:
            bias = Relative(bias.table[list(share.heads)], bias.lowest)
        return Setting(scale, bias, len(share.heads), 1, 1, self.masks, self.calls, self.kernels)


def _queries(share: Share, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, heads, q_len, ...) as (rows of heads, group, q_len, ...); chosen heads are groups of one."""
    x = x[share.rows]
    if share.heads is not None:
        return x[:, list(share.heads)].flatten(0, 1)[:, None]
    return x.unflatten(1, (kv_heads, -1)).flatten(0, 1)


def _keys(share: Share, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """(batch, kv_heads, keys, ...) as (rows of heads, keys, ...)."""
    x = x[share.rows]
    return (x if share.heads is None else x[:, _serving(share, x, q)]).flatten(0, 1)


def _serving(share: Share, x: torch.Tensor, q: torch.Tensor) -> list[int]:
    """The key/value head of each chosen query head."""
    assert share.heads is not None
    return [head // (q.shape[1] // x.shape[1]) for head in share.heads]


def _set(share: Share, x: torch.Tensor, values: torch.Tensor) -> None:
    own = x[share.rows]
    if share.heads is not None:
        own[:, list(share.heads)] = values[:, 0].unflatten(0, (len(own), -1)).to(x.dtype)
    elif values.data_ptr() != own.data_ptr():  # otherwise it was written in place
        own.copy_(values.reshape(own.shape))


def _add_keys(share: Share, x: torch.Tensor, values: torch.Tensor, q: torch.Tensor) -> None:
    own = x[share.rows]
    values = values.unflatten(0, (len(own), -1))
    if share.heads is None:
        own += values
    else:
        own.index_add_(1, torch.tensor(_serving(share, own, q), device=x.device), values)
