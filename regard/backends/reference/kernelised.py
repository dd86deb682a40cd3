"""Linear attention by its formula, pair by pair in quadratic time; the linear backend computes the same faster.

    weight(i, j) = φ(q_i)·φ(k_j) e_ij / Σ_j φ(q_i)·φ(k_j) e_ij,  e_ij = exp(k_log_j + Σ decay_log_t over j < t <= i)

Source: Transformers are RNNs, Katharopoulos et al. 2020, equation 4; for e_ij, Random Feature Attention, Peng et al.
2021, section 3.2, whose recurrence gives this product.
"""

from __future__ import annotations

import math

import torch

from regard.backends.statistics.observe import observe
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms.features import Features, Kernelised


def kernelised_attention(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula above."""
    mechanism = problem.mechanism
    assert isinstance(mechanism, Kernelised)
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    allowed = problem.pattern.evaluate(operands.grid)  # (q_len, keys), or (batch or 1, 1, q_len, keys)
    empty_rows = ~allowed.any(-1, keepdim=True)  # their output is zeros, even if the query holds NaN

    q = operands.q.to(wide).masked_fill(empty_rows, 0)
    features = mechanism.lift(q, operands.k.to(wide), problem.scale, operands.parameters)

    each = lambda x: x.repeat_interleave(problem.group, dim=1)  # noqa: E731 - from kv_heads to heads
    alike = features.q @ each(features.k).mT  # (batch, heads, q_len, keys)
    e = each(_logarithms(features, allowed)).where(allowed, -math.inf).masked_fill(empty_rows, 0)
    shares = e.softmax(-1)  # e_ij divided by their sum, so that none overflows
    total = (alike * shares).sum(-1, keepdim=True)  # (batch, heads, q_len, 1)
    if features.floor is not None:
        total = total.clamp_min(features.floor)
    no_weight = empty_rows | (total == 0)  # all features of the row are 0
    total = total.masked_fill(no_weight, 1)
    weights = (alike * shares / total).masked_fill(no_weight, 0)
    output = (weights @ each(operands.v.to(wide))).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

    log_sum_exp = None
    if "log_sum_exp" in problem.want:
        log_sum_exp = total.squeeze(-1).log() + e.logsumexp(-1)
        log_sum_exp = log_sum_exp if features.q_log is None else log_sum_exp + features.q_log
        log_sum_exp = log_sum_exp.masked_fill(no_weight[..., 0], -math.inf)
    return Result(output, log_sum_exp, **observe(problem, operands.grid, weights, allowed.expand(weights.shape)))


def _logarithms(features: Features, allowed: torch.Tensor) -> torch.Tensor:
    """log e_ij of the allowed pairs, (batch, kv_heads, q_len or 1, keys)."""
    k_log = features.k.new_zeros(features.k.shape[:3]) if features.k_log is None else features.k_log
    if features.decay_log is None:
        return k_log[..., None, :]
    decays = features.decay_log[..., None, :].where(allowed, 0)  # masked keys cause no decay
    since = decays.flip(-1).cumsum(-1).flip(-1)  # over j <= t <= i
    return k_log[..., None, :] + torch.cat([since[..., 1:], torch.zeros_like(since[..., :1])], dim=-1)
