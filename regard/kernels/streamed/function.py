"""Attention block by block, forward and back, as autograd sees it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from regard.core.backend import Operands
from regard.kernels.scores.blocks import LOG2E, Scores
from regard.kernels.scores.gradients import ScoreGradients, score_inputs
from regard.kernels.scores.layout import Layout
from regard.kernels.scores.plain import softmax_pieces
from regard.kernels.second_order import gradients
from regard.kernels.streamed.dropping import Dropping
from regard.kernels.streamed.forward import forward


def stream(layout: Layout, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), float32 at least, differentiable."""
    return _Stream.apply(layout, operands, operands.v, *score_inputs(operands))


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, operands: Operands, v: torch.Tensor, *inputs: torch.Tensor | None) -> Any:
        output, log_sum_exp = forward(Scores(layout, operands), operands)
        ctx.save_for_backward(output, log_sum_exp, v, *inputs)  # an edited tensor is noticed too
        ctx.lowered = layout, operands
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        output, log_sum_exp, *inputs = ctx.saved_tensors
        layout, operands = ctx.lowered
        bias_learns = ctx.needs_input_grad[5]

        def first(grads: Any) -> Any:
            grad = torch.zeros_like(output) if grads[0] is None else grads[0]
            scores = Scores(layout, operands, lonely=log_sum_exp == -math.inf, learns=True)
            sent = ScoreGradients(scores, bias_learns, every_block=True)
            dv = _backward(sent, operands, grad, grads[1], output, log_sum_exp)
            return dv.to(inputs[0].dtype), *sent.by_input(tuple(inputs[1:]))

        return None, None, *gradients(first, partial(softmax_pieces, layout.problem, operands), inputs, grads)


def _backward(
    sent: ScoreGradients,
    operands: Operands,
    grad: torch.Tensor,
    grad_log_sum_exp: torch.Tensor | None,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
) -> torch.Tensor:
    """The gradient of v; those of the scores are sent on.

    With weights P, dP = grad vᵀ: dS = P (dP - rowsum(grad · output) + grad_log_sum_exp).
    """
    scores = sent.scores
    problem = scores.problem
    dv = torch.zeros(operands.v.shape, dtype=scores.dtype, device=operands.v.device)
    v, dv_parts = scores.split(operands.v.to(scores.dtype)), scores.split(dv)
    lonely = scores.lonely
    assert lonely is not None
    grad = grad.to(scores.dtype).masked_fill(lonely[..., None], 0)
    offset = (grad * output).sum(-1)
    if grad_log_sum_exp is not None:
        offset = offset - grad_log_sum_exp.masked_fill(lonely, 0)
    highest = (log_sum_exp * LOG2E).masked_fill(lonely, math.inf)
    room, other, dropping = scores.workspace(), scores.workspace(), Dropping(scores, operands)
    grad = grad * dropping.factor
    slope = scores.workspace() if problem.softcap is not None else None
    for strip in scores.strips():
        rows = slice(strip.rows.start, strip.rows.stop)
        queries = scores.queries(strip.rows)
        dropping.open(strip)
        sent.open(strip, queries)
        queries, pulls, offsets, tops = (
            scores.split(x.reshape(*queries.shape[:3], -1))
            for x in (queries, grad[:, :, rows], offset[:, :, rows], highest[:, :, rows])
        )
        for block in scores.blocks(strip):
            one, pull, kept = block.number, pulls[block.number], dropping.kept(block)
            weights = scores.exponentials(scores.compute(block, queries, room, slope).sub_(tops[one]))
            gradient = torch.bmm(pull, v[one][:, block.columns].mT, out=other.shaped(block.units))  # by the weights
            if kept is not None:
                gradient.mul_(kept)
            gradient.sub_(offsets[one]).mul_(weights)  # by the scores
            dropped = weights if kept is None else weights.mul_(kept)
            dv_parts[one][:, block.columns].baddbmm_(dropped.mT, pull)
            sent.send(block, gradient, None if slope is None else slope.shaped(block.units))
        sent.close(strip.rows)
    return dv
