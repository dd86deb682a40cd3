"""Softmax attention as its formula.

    softmax(cap(score(q, k) · scale) + bias, over the allowed keys) v

Source: Attention Is All You Need, Vaswani et al. 2017, equation 1; other scores beside their formulas in `scores.py`.
"""

from __future__ import annotations

import math

import torch

from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.kernels.dropout import drop
from regard.kernels.reference.scores import distances_from_centre, nearness, similarity, window
from regard.kernels.statistics.observe import observe


def softmax_attention(problem: Problem, operands: Operands) -> Result:
    """The formula above, with every option and statistic."""
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    hidden = ~problem.pattern.evaluate(operands.grid)
    bias = operands.bias_block(operands.grid)
    if bias is not None:
        hidden = hidden | (bias == -math.inf)
    apart = distances_from_centre(problem, operands)
    if apart is not None:
        hidden = hidden | (apart.abs() > window(problem))
    lonely = hidden.all(-1, keepdim=True)  # rows with no key: zeros, never NaN, whatever the query holds

    q = operands.q.to(wide).masked_fill(lonely, 0)
    k = operands.k.to(wide).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, head_dim)
    v = operands.v.to(wide).repeat_interleave(problem.group, dim=1)  # (batch, heads, keys, v_dim)

    scores = similarity(problem, operands, q, k) * problem.scale  # (batch, heads, q_len, keys)
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if apart is not None:
        scores = scores + nearness(problem, apart.masked_fill(lonely, 0))
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(lonely, 0)
    weights = scores.softmax(-1).masked_fill(lonely, 0)
    dropped = drop(weights, problem.dropout, operands.dropout_seed, operands.grid) if problem.dropout else weights
    output = (dropped @ v).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

    log_sum_exp = None
    if "log_sum_exp" in problem.want:
        log_sum_exp = scores.logsumexp(-1).masked_fill(lonely[..., 0], -math.inf)  # (batch, heads, q_len)
    found = observe(problem, operands.grid, weights, ~hidden.expand(weights.shape))
    return Result(output, log_sum_exp, **found)
