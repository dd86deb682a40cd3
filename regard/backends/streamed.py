"""The streamed backend: softmax attention one score block at a time, in memory linear in the length.

It computes what the fused operations cannot: softcap, dropout by `dropout_seed`, gradients of a bias, positions that
differ by batch row. The forward pass updates the softmax with each block of keys. The backward pass computes the
weights again from scores and log-sum-exp.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.backends import flash
from regard.backends.dropout import row_states, write_kept
from regard.backends.far import any_far, natural, replace_far
from regard.backends.limits import Limited, not_empty, on_softmax
from regard.backends.merging import Merging
from regard.backends.schedule import strictly
from regard.backends.scores.blocking import BlockCounts, Blocking, RowBlock, blocking_of
from regard.backends.scores.blocks import BlockedScores, ScoreBlock, ScoreGradients, score_inputs
from regard.backends.scores.formulas import SLAB, score_flops, score_flops_backward, sums_tanh
from regard.backends.scores.normalising import Normaliser
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import gradients
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core import costs
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import RELATIVE, Problem
from regard.core.result import Result
from regard.mechanisms import Softmax

# Pairs of a block that a fused operation computes; it needs a mask but no workspace.
FUSED_PAIRS = 1 << 20


@with_sinks
class Streamed(Limited):
    """Softmax over every score with every option."""

    name = "streamed"
    limits = (on_softmax, not_empty)

    def offer(self, problem: Problem) -> Offer | Refusal:
        blocking = blocking_of(problem)
        cost = with_statistics(_cost(blocking, blocking.size()), problem)
        return strictly(problem, Offer(cost, partial(self.run, blocking)))

    def run(self, blocking: Blocking, operands: Operands) -> Result:
        problem = blocking.problem
        output, log_sum_exp = stream(blocking, operands)
        return result_of(problem, operands, output.to(operands.q.dtype), log_sum_exp)


def _cost(blocking: Blocking, size: BlockCounts) -> Cost:
    problem = blocking.problem
    pairs = size.pairs
    learning = problem.needs_grad or problem.bias_learns
    width = torch.promote_types(problem.dtype, torch.float32).itemsize
    by_pair = costs.STREAMED_PAIR + score_flops(problem)
    of_dropout = costs.DROPOUT_PAIR if problem.dropout else 0
    if learning:
        by_pair += 2 * problem.v_dim * 3.5
        by_pair += costs.STREAMED_PAIR_BACKWARD + score_flops_backward(problem)
        by_pair += 2 * of_dropout
        times_moved = 3
        times_called = 2.5
    else:
        by_pair += 2 * problem.v_dim
        by_pair += of_dropout
        times_moved = times_called = 1
    # keys read by one head, over all row blocks
    reads = pairs // (problem.batch * problem.heads * blocking.rows)
    vectors = problem.batch * (problem.heads * problem.q_len + problem.kv_heads * reads)
    held = 2 * min(FUSED_PAIRS, pairs) if may_be_fused(problem) else 0
    return Cost(
        flops=pairs * by_pair * width / 4,
        bytes=width * vectors * (problem.head_dim + problem.v_dim) * times_moved,
        peak_bytes=width * (max(4 * blocking.largest, held) + SLAB * sums_tanh(problem)),
        pairs=pairs,
        calls=round((costs.STREAMED_START + costs.STREAMED_BLOCK * size.blocks) * times_called),
        estimated=not size.exact,
    )


def stream(blocking: Blocking, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), float32 at least, differentiable."""
    return _Stream.apply(blocking, operands, operands.v, *score_inputs(operands))


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        blocking: Blocking,
        operands: Operands,
        v: torch.Tensor,
        *inputs: torch.Tensor | None,
    ) -> Any:
        output, log_sum_exp = forward(BlockedScores(blocking, operands), operands)
        # The inputs too, so that autograd detects changes of them in place.
        ctx.save_for_backward(output, log_sum_exp, v, *inputs)
        ctx.lowered = blocking, operands
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        output, log_sum_exp, *inputs = ctx.saved_tensors
        blocking, operands = ctx.lowered
        bias_learns = ctx.needs_input_grad[5]

        def first_order(grads: Any) -> Any:
            grad, grad_log_sum_exp = grads
            if grad is None:
                grad = torch.zeros_like(output)
            scores = BlockedScores(
                blocking, operands, empty_rows=log_sum_exp == -math.inf, learns=True
            )
            of_scores = ScoreGradients(scores, bias_learns, every_block=True)
            dv = _backward(of_scores, operands, grad, grad_log_sum_exp, output, log_sum_exp)
            return dv.to(inputs[0].dtype), *of_scores.by_input(tuple(inputs[1:]))

        pieces = partial(softmax_pieces, blocking.problem, operands)
        return None, None, *gradients(first_order, pieces, inputs, grads)


def _backward(
    of_scores: ScoreGradients,
    operands: Operands,
    grad: torch.Tensor,
    grad_log_sum_exp: torch.Tensor | None,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
) -> torch.Tensor:
    """The gradient of v; those of the scores go to `of_scores`.

    With weights P, dP = grad vᵀ: dS = P (dP - rowsum(grad · output) + grad_log_sum_exp).
    """
    scores = of_scores.scores
    problem = scores.problem
    dv = torch.zeros(operands.v.shape, dtype=scores.dtype, device=operands.v.device)
    v = scores.split(operands.v.to(scores.dtype))
    dv_parts = scores.split(dv)
    empty_rows = scores.empty_rows
    assert empty_rows is not None
    grad = grad.to(scores.dtype).masked_fill(empty_rows[..., None], 0)
    offset = (grad * output).sum(-1)
    if grad_log_sum_exp is not None:
        offset = offset - grad_log_sum_exp.masked_fill(empty_rows, 0)
    normaliser = Normaliser(scores, log_sum_exp)
    room = scores.workspace()
    gradient_room = scores.workspace()
    dropout = WeightDropout(scores, operands)
    grad = grad * dropout.factor
    # The derivatives of the softcap.
    slope = scores.workspace() if problem.softcap is not None else None
    for row_block in scores.row_blocks():
        rows = slice(row_block.rows.start, row_block.rows.stop)
        queries = scores.queries(row_block.rows)
        dropout.open(row_block)
        of_scores.open(row_block, queries)
        normaliser.open(row_block)
        lines = queries.shape[:3]
        grads = scores.split(grad[:, :, rows].reshape(*lines, -1))
        offsets = scores.split(offset[:, :, rows].reshape(*lines, -1))
        queries = scores.split(queries)
        for block in scores.blocks(row_block):
            unit = block.number
            kept = dropout.kept(block)
            values = scores.compute(block, queries, room, slope)
            weights = scores.exponentials(normaliser.subtract_from(values, block))
            # of the weights
            gradient = torch.bmm(
                grads[unit], v[unit][:, block.columns].mT, out=gradient_room.shaped(block.units)
            )
            if kept is not None:
                gradient.mul_(kept)
            gradient.sub_(offsets[unit]).mul_(weights)  # of the scores
            dropped = weights if kept is None else weights.mul_(kept)
            dv_parts[unit][:, block.columns].baddbmm_(dropped.mT, grads[unit])
            of_scores.send(block, gradient, None if slope is None else slope.shaped(block.units))
        of_scores.close(row_block.rows)
    return dv


def forward(scores: BlockedScores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), in the dtype of the scores."""
    if may_be_fused(scores.problem):
        output, log_sum_exp = _by_fused_blocks(scores, operands)
        if not any_far(log_sum_exp):
            return output, log_sum_exp
        # Blocks are merged by their log-sum-exp, which is too coarse for these rows.
        return replace_far(output, log_sum_exp, *_by_own_blocks(scores, operands))
    return _by_own_blocks(scores, operands)


def may_be_fused(problem: Problem) -> bool:
    """Whether the fused operations compute the blocks of the forward pass. They are faster, unless a bias by distance
    would have to be written out for every pair. The backward pass of this file needs only their log-sum-exp.
    """
    if problem.softcap is not None or problem.dropout:
        return False
    if problem.bias == RELATIVE or problem.mechanism != Softmax():
        return False
    return flash.refusal(torch.promote_types(problem.dtype, torch.float32), problem.device) is None


def _by_fused_blocks(
    scores: BlockedScores, operands: Operands
) -> tuple[torch.Tensor, torch.Tensor]:
    problem = scores.problem
    scores = BlockedScores(blocking_of(problem, pairs=FUSED_PAIRS), operands)
    q = scores.q.flatten(1, 2)
    v = operands.v.to(scores.dtype)
    merging = Merging(q.new_zeros(*scores.rows, problem.v_dim), q.new_full(scores.rows, -math.inf))
    for row_block in scores.row_blocks():
        for block in scores.blocks(row_block):
            keys = block.lot.batch, block.lot.kv_heads, block.columns
            call = flash.FusedCall(_mask(scores, block), False, problem.scale)
            result = flash.forward(q[block.lines], scores.k[keys], v[keys], call)
            first = block.keys.start == row_block.runs[0].keys.start
            merging.add(block.lines, *result, first)
    return merging.merged()


def _mask(scores: BlockedScores, block: ScoreBlock) -> torch.Tensor | None:
    """Mask and bias of a block, to be added to its scores, (batch or 1, heads or 1, rows, keys); None without both."""
    bias = scores.bias_of(block)
    hidden = None if block.hidden is None else block.of(block.hidden)
    parts = [part for part in (bias, hidden) if part is not None]
    if not parts:
        return None
    mask = sum(parts[1:], parts[0])
    mask = mask.expand(*mask.shape[:2], *block.shape[2:])
    return mask if mask.stride(-1) == 1 else mask.contiguous()


def _by_own_blocks(scores: BlockedScores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp by a running softmax, which is rescaled if a block has a larger score than those before.

    Source: Online normalizer calculation for softmax, Milakov and Gimelshein 2018, algorithm 3.
    """
    problem = scores.problem
    v = scores.split(operands.v.to(scores.dtype))
    sizes = scores.rows
    output = scores.q.new_empty(*sizes, problem.v_dim)
    log_sum_exp = scores.q.new_empty(sizes)
    room = scores.workspace()
    dropout = WeightDropout(scores, operands)
    for row_block in scores.row_blocks():
        queries = scores.queries(row_block.rows)
        dropout.open(row_block)
        lines = queries.shape[:3]
        largest = queries.new_full((*lines, 1), torch.finfo(scores.dtype).min)
        total = torch.zeros_like(largest)
        mean = queries.new_zeros(*lines, problem.v_dim)
        by_unit = zip(*map(scores.split, (largest, total, mean)), strict=True)
        sums_of_units = [RunningSums(*parts) for parts in by_unit]
        queries = scores.split(queries)
        for block in scores.blocks(row_block):
            unit = block.number
            kept = dropout.kept(block)
            values = scores.compute(block, queries, room)
            sums_of_units[unit].add(scores, values, kept, v[unit][:, block.columns])
        rows = slice(row_block.rows.start, row_block.rows.stop)
        # The total is at least 1 unless the row is empty, since the largest score adds 1.
        share = dropout.factor / total.clamp_min(1)
        output[:, :, rows] = mean.mul_(share).view(*sizes[:2], len(row_block.rows), -1)
        log_sums = natural(largest.add_(total.log2_()))
        log_sum_exp[:, :, rows] = log_sums.view(*sizes[:2], len(row_block.rows))
    return _without_spoilt_rows(scores, output, log_sum_exp)


class RunningSums(NamedTuple):
    """The state of a running softmax over the blocks so far: the largest score of each row, and sums beside it.

    largest, total: (..., rows, 1). mean: (..., rows, v_dim), the sums of weighted values, not yet divided by the total.
    """

    largest: torch.Tensor
    total: torch.Tensor
    mean: torch.Tensor

    def add(
        self,
        scores: BlockedScores,
        values: torch.Tensor,
        kept: torch.Tensor | None,
        v: torch.Tensor,
    ) -> None:
        """Add a block in place.

        values: its scores, which are overwritten. kept: which weights dropout keeps.
        """
        larger = torch.maximum(self.largest, values.amax(-1, keepdim=True))
        correction = self.largest.sub_(larger).exp2_()
        weights = scores.exponentials(values.sub_(larger))
        self.total.mul_(correction).add_(weights.sum(-1, keepdim=True))
        if kept is not None:
            weights.mul_(kept)
        self.mean.mul_(correction).baddbmm_(weights, v)
        self.largest.copy_(larger)


def _without_spoilt_rows(
    scores: BlockedScores, output: torch.Tensor, log_sum_exp: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and log-sum-exp with empty rows set to zeros and -inf; a NaN in their query may have changed them."""
    if log_sum_exp.isnan().any():
        empty_rows = scores.find_empty_rows()
        output.masked_fill_(empty_rows[..., None], 0)
        log_sum_exp.masked_fill_(empty_rows, -math.inf)
    return output, log_sum_exp


class WeightDropout:
    """Dropout block by block: which weights are kept, and the `factor` that they are multiplied by."""

    def __init__(self, scores: BlockedScores, operands: Operands) -> None:
        problem = scores.problem
        self.dropout = problem.dropout
        self.seed = operands.dropout_seed
        self.scores = scores
        self.factor = 0.0 if self.dropout >= 1 else 1 / (1 - self.dropout)
        self._room = scores.workspace() if self.dropout else None

    def open(self, row_block: RowBlock) -> None:
        if self._room is not None:
            problem = self.scores.problem
            grid = self.scores.grid
            rows = grid.block(row_block.rows, grid.keys)
            self._states = row_states(self.seed, problem.batch, problem.heads, rows)

    def kept(self, block: ScoreBlock) -> torch.Tensor | None:
        """1 or 0 for every weight of a block, (units, lines, keys); None without dropout."""
        if self._room is None:
            return None
        grid = self.scores.grid.block(block.rows, block.keys)
        states = self._states[block.lot.batch, block.heads]
        return write_kept(self._room.shaped(block.units), self.dropout, states, grid.k_pos)
