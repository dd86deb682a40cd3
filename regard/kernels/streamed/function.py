"""Attention block by block, forward and back, as autograd sees it."""

from __future__ import annotations

import math
from typing import Any

import torch

from regard.kernels.dropout import row_states, write_kept
from regard.kernels.score_gradients import ScoreGradients
from regard.kernels.scores import LOG2E, Block, Scores, Workspace
from regard.kernels.strips import Layout, Strip
from regard.operands import Operands, Relative


def stream(layout: Layout, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), float32 at least, differentiable."""
    learned = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
    return _Stream.apply(operands.q, operands.k, operands.v, learned, layout, operands)


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        learned: torch.Tensor | None,
        layout: Layout,
        operands: Operands,
    ) -> Any:
        output, log_sum_exp = _forward(Scores(layout, operands), operands)
        ctx.save_for_backward(q, k, v, learned, output, log_sum_exp)  # an edited tensor is noticed too
        ctx.lowered = layout, operands
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, learned, output, log_sum_exp = ctx.saved_tensors
        layout, operands = ctx.lowered
        grad = torch.zeros_like(output) if grads[0] is None else grads[0]
        sent = ScoreGradients(Scores(layout, operands), ctx.needs_input_grad[3])
        dv = _backward(sent, operands, grad, grads[1], output, log_sum_exp)
        dbias = None if sent.dbias is None else sent.dbias.to(learned.dtype)
        return sent.dq.to(q.dtype), sent.dk.to(k.dtype), dv.to(v.dtype), dbias, None, None


class _Dropping:
    """Which weights stay, block by block; `factor` is what they are multiplied with."""

    def __init__(self, scores: Scores, operands: Operands) -> None:
        problem = scores.problem
        self.dropout, self.seed, self.scores = problem.dropout, operands.dropout_seed, scores
        self.factor = 0.0 if self.dropout >= 1 else 1 / (1 - self.dropout)
        self._room = scores.workspace() if self.dropout else None

    def open(self, strip: Strip) -> None:
        """Begin a strip."""
        if self._room is not None:
            problem, grid = self.scores.problem, self.scores.grid
            rows = grid.block(strip.rows, grid.keys)
            self._states = row_states(self.seed, problem.batch, problem.heads, rows)

    def kept(self, block: Block) -> torch.Tensor | None:
        """1 or 0 for every weight of a block, (units, lines, keys); None without dropout."""
        if self._room is None:
            return None
        grid = self.scores.grid.block(block.rows, block.keys)
        states = self._states[block.part.batch, block.heads]
        return write_kept(self._room.shaped(block.units), self.dropout, states, grid.k_pos)


def _forward(scores: Scores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax over what was met so far, corrected whenever a larger score is met.

    Source: Online normalizer calculation for softmax, Milakov and Gimelshein 2018, algorithm 3.
    """
    problem = scores.problem
    v = scores.split(operands.v.to(scores.dtype))
    sizes = scores.rows
    output = scores.q.new_empty(*sizes, problem.v_dim)
    log_sum_exp = scores.q.new_empty(sizes)
    room, dropping = scores.workspace(), _Dropping(scores, operands)
    for strip in scores.strips():
        queries = scores.queries(strip.rows)
        dropping.open(strip)
        lines = queries.shape[:3]
        largest = queries.new_full((*lines, 1), torch.finfo(scores.dtype).min)
        total, mean = torch.zeros_like(largest), queries.new_zeros(*lines, problem.v_dim)
        queries, *states = (scores.split(x) for x in (queries, largest, total, mean))
        for block in scores.blocks(strip):
            here = (state[block.number] for state in states)
            _absorb(scores, block, queries, room, dropping.kept(block), v[block.number][:, block.columns], *here)
        rows = slice(strip.rows.start, strip.rows.stop)
        share = dropping.factor / total.clamp_min(1)  # a row that sees a key has at least 1, that of its largest score
        output[:, :, rows] = mean.mul_(share).view(*sizes[:2], len(strip.rows), -1)
        log_sum_exp[:, :, rows] = largest.add_(total.log2_()).div_(LOG2E).view(*sizes[:2], len(strip.rows))
    return _without_lonely(scores, output, log_sum_exp)


def _absorb(
    scores: Scores,
    block: Block,
    queries: list[torch.Tensor],
    room: Workspace,
    kept: torch.Tensor | None,
    v: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    mean: torch.Tensor,
) -> None:
    """One block more into the largest score, the sum of weights and the sum of weighted values, which are changed."""
    found = scores.compute(block, queries, room)
    larger = torch.maximum(largest, found.amax(-1, keepdim=True))
    correction = largest.sub_(larger).exp2_()
    weights = scores.exponentials(found.sub_(larger))
    total.mul_(correction).add_(weights.sum(-1, keepdim=True))
    if kept is not None:
        weights.mul_(kept)
    mean.mul_(correction).baddbmm_(weights, v)
    largest.copy_(larger)


def _without_lonely(
    scores: Scores, output: torch.Tensor, log_sum_exp: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows without a key are zeros whatever their query holds; only one that is not finite can have spoilt them."""
    if log_sum_exp.isnan().any():
        lonely = scores.lonely_rows()
        output.masked_fill_(lonely[..., None], 0)
        log_sum_exp.masked_fill_(lonely, -math.inf)
    return output, log_sum_exp


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
    lonely = log_sum_exp == -math.inf
    grad = grad.to(scores.dtype).masked_fill(lonely[..., None], 0)
    offset = (grad * output).sum(-1)
    if grad_log_sum_exp is not None:
        offset = offset - grad_log_sum_exp.masked_fill(lonely, 0)
    highest = (log_sum_exp * LOG2E).masked_fill(lonely, math.inf)
    room, other, dropping = scores.workspace(), scores.workspace(), _Dropping(scores, operands)
    grad = grad * dropping.factor
    slope = scores.workspace() if problem.softcap is not None else None
    for strip in scores.strips():
        rows = slice(strip.rows.start, strip.rows.stop)
        queries = scores.queries(strip.rows, lonely[:, :, rows])
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
