"""The scores of a softmax as their formulas, of queries and keys that are projected already.

    dot, scaled dot, general   q' · k'
    additive, concat           v · tanh(q' + k')
    local-p                    one of them - (j - p)² / (2 σ²),   p = first + S · sigmoid(...),   σ = D / 2

Sources: Vaswani et al. 2017, equation 1; Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, section 3.1 and
equations 9 and 10.
"""

from __future__ import annotations

import torch

from regard.kernels.scores.formulas import live_keys, sums_tanh
from regard.mechanisms import Softmax
from regard.mechanisms.scores.pairs import AroundCentre
from regard.operands import Operands
from regard.problem import Problem


def similarity(problem: Problem, operands: Operands, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scores of queries (batch, heads, q_len, head_dim) and keys (batch, heads, keys, head_dim), before the scale."""
    if not sums_tanh(problem):
        return q @ k.mT
    hidden_layer = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, q_len, keys, head_dim)
    energy = operands.parameters["energy"].to(q.dtype)  # (heads or 1, head_dim)
    return (hidden_layer * energy[:, None, None]).sum(-1)


def distances_from_centre(problem: Problem, operands: Operands) -> torch.Tensor | None:
    """`j - p`, (batch, heads, q_len, keys), for a score that predicts where to look."""
    if _local(problem) is None:
        return None
    first, count = live_keys(problem, operands.grid)  # of those that some query sees
    centre = first + count * operands.parameters["centre"]  # (batch, heads, q_len)
    return operands.grid.k_pos - centre[..., None]


def window(problem: Problem) -> int:
    """D: keys farther than this from the centre are not seen."""
    local = _local(problem)
    assert local is not None
    return local.window


def nearness(problem: Problem, apart: torch.Tensor) -> torch.Tensor:
    """The logarithm of the Gaussian around the centre."""
    deviation = window(problem) / 2
    return -(apart**2) / (2 * deviation**2)


def _local(problem: Problem) -> AroundCentre | None:
    assert isinstance(problem.mechanism, Softmax)
    score = problem.mechanism.score
    return score if isinstance(score, AroundCentre) else None
