"""Linformer by its formula.

    softmax(q (E k)ᵀ · scale) (F v)

Source: Linformer: Self-Attention with Linear Complexity, Wang et al. 2020, equation 7.
"""

from __future__ import annotations

import math

import torch

from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import Linformer


def linformer_attention(problem: Problem, operands: Operands) -> Result:
    """Output by the formula above; hidden keys and values are zeros already, and empty rows give zeros."""
    assert isinstance(problem.mechanism, Linformer)
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    empty_rows = ~problem.pattern.evaluate(operands.grid).any(-1, keepdim=True)
    E, F = (matrix.to(wide) for matrix in problem.mechanism.projections(operands.parameters))

    q = operands.q.to(wide).masked_fill(empty_rows, 0)
    k = (E @ operands.k.to(wide)).repeat_interleave(problem.group, dim=1)  # (batch, heads, rank, head_dim)
    v = (F @ operands.v.to(wide)).repeat_interleave(problem.group, dim=1)  # (batch, heads, rank, v_dim)

    scores = q @ k.mT * problem.scale  # (batch, heads, q_len, rank)
    output = (scores.softmax(-1) @ v).masked_fill(empty_rows, 0).to(operands.q.dtype)  # (batch, heads, q_len, v_dim)
    if "log_sum_exp" not in problem.want:
        return Result(output)
    return Result(output, scores.logsumexp(-1).masked_fill(empty_rows[..., 0], -math.inf))
