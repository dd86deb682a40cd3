"""The forward pass: the softmax over what was met so far, block by block."""

from __future__ import annotations

import math

import torch

from regard.core.backend import Operands
from regard.core.problem import RELATIVE, Problem
from regard.kernels import flash
from regard.kernels.scores.blocks import LOG2E, Block, Scores
from regard.kernels.scores.layout import lay_out
from regard.kernels.scores.workspace import Workspace
from regard.kernels.streamed.dropping import Dropping
from regard.mechanisms import Softmax

FUSED_PAIRS = 1 << 20  # of a block that a fused operation computes, which needs no workspace but a mask


def forward(scores: Scores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), in the dtype of the scores."""
    compute = _by_fused_blocks if may_be_fused(scores.problem) else _by_own_blocks
    return compute(scores, operands)


def may_be_fused(problem: Problem) -> bool:
    """Do the fused operations compute the blocks? They are faster, but for a bias that would be spread out for them.

    The backward pass of this room needs no more than their log-sum-exp.
    """
    if problem.softcap is not None or problem.dropout or problem.bias == RELATIVE or problem.mechanism != Softmax():
        return False
    return flash.refusal(torch.promote_types(problem.dtype, torch.float32), problem.device) is None


def _by_fused_blocks(scores: Scores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    problem = scores.problem
    scores = Scores(lay_out(problem, pairs=FUSED_PAIRS), operands)
    q, v = scores.q.flatten(1, 2), operands.v.to(scores.dtype)
    output = q.new_zeros(*scores.rows, problem.v_dim)
    log_sum_exp = q.new_full(scores.rows, -math.inf)
    for strip in scores.strips():
        for block in scores.blocks(strip):
            keys = block.part.batch, block.part.kv_heads, block.columns
            call = flash.Call(_mask(scores, block), False, problem.scale)
            found = flash.forward(q[block.lines], scores.k[keys], v[keys], call)
            if block.keys.start != strip.tiles[0].keys.start:
                found = flash.merge([(output[block.lines], log_sum_exp[block.lines]), found])
            output[block.lines], log_sum_exp[block.lines] = found
    return output, log_sum_exp


def _mask(scores: Scores, block: Block) -> torch.Tensor | None:
    """What is added to the scores of a block, (batch or 1, heads or 1, rows, keys)."""
    bias, hidden = scores.bias_of(block), None if block.hidden is None else block.of(block.hidden)
    parts = [part for part in (bias, hidden) if part is not None]
    if not parts:
        return None
    mask = sum(parts[1:], parts[0])
    mask = mask.expand(*mask.shape[:2], *block.shape[2:])
    return mask if mask.stride(-1) == 1 else mask.contiguous()


def _by_own_blocks(scores: Scores, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Corrected whenever a larger score is met.

    Source: Online normalizer calculation for softmax, Milakov and Gimelshein 2018, algorithm 3.
    """
    problem = scores.problem
    v = scores.split(operands.v.to(scores.dtype))
    sizes = scores.rows
    output = scores.q.new_empty(*sizes, problem.v_dim)
    log_sum_exp = scores.q.new_empty(sizes)
    room, dropping = scores.workspace(), Dropping(scores, operands)
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
