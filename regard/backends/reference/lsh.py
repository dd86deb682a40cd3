"""LSH attention by its formula, pair by pair.

    o_i = Σ_{j in P_i} exp(q_i · k_j · scale - z(i, P_i)) v_j,   P_i = the union of P_i^(r) over the rounds r
    P_i^(r) = {j : h_r(q_i) = h_r(k_j), chunk(s_i) - 1 <= chunk(s_j) <= chunk(s_i)},   chunk(s) = floor(s / m)

Source: Reformer, Kitaev et al. 2020, section 2, equations 2 to 5. The docstring of `LSH` says how the causal form
differs.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from regard.backends.statistics.observe import observe
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import LSH
from regard.mechanisms.lsh import rows_at
from regard.patterns import Causal


def lsh_attention(problem: Problem, operands: Operands) -> Result:
    """Output and every statistic by the formula above."""
    mechanism, grid = problem.mechanism, operands.grid
    assert isinstance(mechanism, LSH)
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    visible = problem.pattern.visible_keys(grid)
    # (batch or 1, keys)
    visible = grid.k_pos.new_ones(1, len(grid.keys), dtype=torch.bool) if visible is None else visible[:, 0]
    own = mechanism.own_keys(operands.q, operands.k, grid, visible)  # (batch or 1, q_len)
    causal = Causal() in problem.pattern.factors

    allowed = _allowed(mechanism, operands.k, own, visible, causal)  # (batch, heads, q_len, keys)
    empty_rows = ~allowed.any(-1, keepdim=True)  # their output is zeros, even if the query holds NaN

    q, k = operands.q.to(wide).masked_fill(empty_rows, 0), mechanism.unit(operands.k.to(wide))
    scores = (q @ k.mT * problem.scale).masked_fill(~allowed, -math.inf).masked_fill(empty_rows, 0)
    weights = scores.softmax(-1).masked_fill(empty_rows, 0)
    output = (weights @ operands.v.to(wide)).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)

    log_sum_exp = None
    if "log_sum_exp" in problem.want:
        log_sum_exp = scores.logsumexp(-1).masked_fill(empty_rows[..., 0], -math.inf)
    return Result(output, log_sum_exp, **observe(problem, grid, weights, allowed))


def _allowed(mechanism: LSH, k: torch.Tensor, own: torch.Tensor, visible: torch.Tensor, causal: bool) -> torch.Tensor:
    """Which pairs are allowed, (batch, heads, q_len, keys)."""
    at, i = torch.arange(k.shape[2], device=k.device), own[:, None, :, None]
    of_queries = lambda x: rows_at(x[..., None], own)  # noqa: E731 - of every key to (..., q_len, 1)
    rank = visible.cumsum(-1) - 1  # (batch or 1, keys)
    fits = (rank < mechanism.chunk) & (causal | (visible.sum(-1, keepdim=True) <= mechanism.chunk))
    seen = of_queries(fits[:, None]).expand(*k.shape[:2], -1, len(at))  # one chunk: all pairs are allowed
    for bucket in mechanism.bucket(k).unbind(2):  # (batch, heads, keys)
        same = of_queries(bucket) == bucket[..., None, :]  # equation 4
        chunk = _place(mechanism, bucket, visible, causal) // mechanism.chunk
        back = of_queries(chunk) - chunk[..., None, :]
        seen = seen | same & (back >= 0) & (back <= 1)  # equation 5
    others = seen & visible[:, None, None] & (at < i if causal else at != i) & (i < len(at))
    return others | (at == i) & ~others.any(-1, keepdim=True)


def _place(mechanism: LSH, bucket: torch.Tensor, visible: torch.Tensor, causal: bool) -> torch.Tensor:
    """s_i, the number of visible keys before each key in order of (bucket, position); if causal, of its bucket only."""
    inside = F.one_hot(bucket, mechanism.bucket_count) * visible[:, None, :, None]  # (batch, heads, keys, buckets)
    place = inside.cumsum(-2).gather(-1, bucket[..., None])[..., 0] - 1
    if causal:
        return place
    sizes = inside.sum(-2)  # (batch, heads, buckets)
    return place + (sizes.cumsum(-1) - sizes).gather(-1, bucket)
