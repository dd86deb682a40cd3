"""The batch rows and heads that one pattern rules, each with programs of its own, behind one autograd function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.kernels import flash
from regard.kernels.scores.plain import softmax_pieces
from regard.kernels.second_order import gradients
from regard.kernels.tiled.calls import Setting
from regard.kernels.tiled.execution import Found, backward, forward
from regard.kernels.tiled.program import Program
from regard.operands import Operands, Relative
from regard.problem import Problem


@dataclass(frozen=True)
class Share:
    """The batch rows and query heads that one pattern rules, and their programs; `single`: of heads, not of groups."""

    rows: slice
    heads: tuple[int, ...] | None
    ahead: Program
    back: Program | None


def run_shares(problem: Problem, operands: Operands, shares: list[Share]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), differentiable in both."""
    bias = operands.bias.table if isinstance(operands.bias, Relative) else None
    return _Shares.apply(operands.q, operands.k, operands.v, bias, problem, operands, shares)


class _Shares(torch.autograd.Function):
    """Every share's program, between tensors as the call gave them."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: torch.Tensor | None,
        problem: Problem,
        operands: Operands,
        shares: list[Share],
    ) -> Any:
        output = q.new_empty(*q.shape[:3], v.shape[-1])
        log_sum_exp = q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        for share in shares:
            parts = (_queries(share, q, k.shape[1]), _keys(share, k, q), _keys(share, v, q))
            places = Found(_queries(share, output, k.shape[1]), _queries(share, log_sum_exp, k.shape[1]))
            forward(share.ahead, *parts, _setting(problem, share, operands, q, k), places)
            _set(share, output, places.output)
            _set(share, log_sum_exp, places.log_sum_exp)
        ctx.save_for_backward(q, k, v, output, log_sum_exp, table)  # an edited table is noticed too
        ctx.lowered = problem, operands, shares
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, output, log_sum_exp, table = ctx.saved_tensors
        problem, operands, shares = ctx.lowered

        def first(grads: Any) -> Any:
            dq, dk, dv = _backward(grads, q, k, v, output, log_sum_exp, problem, operands, shares)
            return dv, dq, dk, None, None, None

        inputs = v, q, k, table, None, None
        dv, dq, dk, *_ = gradients(first, partial(softmax_pieces, problem, operands), inputs, grads)
        return dq, dk, dv, None, None, None, None


def _backward(
    arrived: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    problem: Problem,
    operands: Operands,
    shares: list[Share],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad = torch.zeros_like(output) if arrived[0] is None else arrived[0]
    grads = torch.empty_like(q), *(torch.zeros_like(x, dtype=log_sum_exp.dtype) for x in (k, v))
    for share in shares:
        queries = partial(_queries, share, kv_heads=k.shape[1])
        saved = flash.Saved(
            queries(q), _keys(share, k, q), _keys(share, v, q), queries(output), queries(log_sum_exp),
            queries(grad), None if arrived[1] is None else queries(arrived[1]),
        )  # fmt: skip
        dq, dk, dv = backward(share.back or share.ahead, saved, _setting(problem, share, operands, q, k))
        _set(share, grads[0], dq)
        _add_keys(share, grads[1], dk, q)
        _add_keys(share, grads[2], dv, q)
    return grads[0], grads[1].to(k.dtype), grads[2].to(v.dtype)


def _setting(problem: Problem, share: Share, operands: Operands, q: torch.Tensor, k: torch.Tensor) -> Setting:
    bias = operands.bias if isinstance(operands.bias, Relative) else None
    if share.heads is None:
        return Setting(problem.scale, bias, k.shape[1], q.shape[1] // k.shape[1])
    if bias is not None and len(bias.table) > 1:
        bias = Relative(bias.table[list(share.heads)], bias.lowest)
    return Setting(problem.scale, bias, len(share.heads), 1)


def _queries(share: Share, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, heads, q_len, ...) as (rows of heads, group, q_len, ...); chosen heads stand alone."""
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


def _set(share: Share, x: torch.Tensor, piece: torch.Tensor) -> None:
    part = x[share.rows]
    if share.heads is not None:
        part[:, list(share.heads)] = piece[:, 0].unflatten(0, (len(part), -1)).to(x.dtype)
    elif piece.data_ptr() != part.data_ptr():  # else it was written in place
        part.copy_(piece.reshape(part.shape))


def _add_keys(share: Share, x: torch.Tensor, piece: torch.Tensor, q: torch.Tensor) -> None:
    part = x[share.rows]
    piece = piece.unflatten(0, (len(part), -1))
    if share.heads is None:
        part += piece
    else:
        part.index_add_(1, torch.tensor(_serving(share, part, q), device=x.device), piece)
