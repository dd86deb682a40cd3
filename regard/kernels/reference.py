"""Attention as its formula: slow, complete, and what every other backend answers to.

    softmax(cap(q kᵀ · scale) + bias, over the allowed keys) v

Source: Attention Is All You Need, Vaswani et al. 2017, equation 1.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from regard.detail import Result
from regard.kernels.dropout import PAIR, drop
from regard.kernels.statistics.observe import observe
from regard.kernels.statistics.second_pass import with_statistics
from regard.mechanisms import Softmax
from regard.operands import Operands
from regard.plan import Cost, Offer, Refusal
from regard.problem import Problem


class Reference:
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if not isinstance(problem.mechanism, Softmax):
            return Refusal(f"it computes softmax attention, not {problem.mechanism}")
        if problem.strict and problem.q_len > 1:
            return Refusal("strict=True, and it computes a dense q_len x k_len matrix of scores")
        width = 8 if problem.dtype == torch.float64 else 4
        learning = problem.needs_grad or problem.bias_learns
        flops = 2 * problem.pairs * (problem.head_dim + problem.v_dim) * (3.5 if learning else 1)
        flops += PAIR * problem.pairs if problem.dropout else 0
        scores = problem.pairs * width
        passes = 40 if learning else 24  # over the scores: each line of `run` reads them and writes fresh memory
        vectors = problem.batch * problem.heads * (problem.q_len + problem.k_len) * (problem.head_dim + problem.v_dim)
        moved = width * vectors + passes * scores
        cost = Cost(flops, moved, peak_bytes=3 * scores, pairs=problem.pairs, calls=25 if learning else 10)
        return Offer(with_statistics(cost, problem), partial(self.run, problem))  # counted alike: asking moves no plan

    def run(self, problem: Problem, operands: Operands) -> Result:
        wide = torch.promote_types(operands.q.dtype, torch.float32)
        hidden = ~problem.pattern.evaluate(operands.grid)
        bias = operands.bias_block(operands.grid)
        if bias is not None:
            hidden = hidden | (bias == -math.inf)
        lonely = hidden.all(-1, keepdim=True)  # rows with no key: zeros, never NaN, whatever the query holds

        q = operands.q.to(wide).masked_fill(lonely, 0)
        k = operands.k.to(wide).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, head_dim)
        v = operands.v.to(wide).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, v_dim)

        scores = q @ k.mT * problem.scale  # (batch, heads, q_len, keys)
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        if bias is not None:
            scores = scores + bias.to(wide)
        scores = scores.masked_fill(hidden, -math.inf).masked_fill(lonely, 0)
        weights = scores.softmax(-1).masked_fill(lonely, 0)
        dropped = drop(weights, problem.dropout, operands.dropout_seed, operands.grid) if problem.dropout else weights
        output = (dropped @ v).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

        log_sum_exp = None
        if "log_sum_exp" in problem.want:
            log_sum_exp = scores.logsumexp(-1).masked_fill(lonely[..., 0], -math.inf)  # (batch, heads, q_len)
        found = observe(problem, operands.grid, weights, ~hidden.expand(weights.shape))
        return Result(output, log_sum_exp, **found)
