"""Statistics from dense weights, by their formulas; the second pass must agree with them."""

from __future__ import annotations

import math
from typing import Any

import torch

from regard.core.problem import Problem
from regard.core.result import TopKeys, TopKeysFound, WeightsOf, requested
from regard.patterns import Grid


def observe(problem: Problem, grid: Grid, weights: torch.Tensor, seen: torch.Tensor) -> dict[str, Any]:
    """The requested statistics except log_sum_exp, by their names in `Result`.

    Args:
        problem: the call.
        grid: its positions.
        weights: (batch, heads, q_len, keys).
        seen: booleans of the same shape, True where the pair is allowed.
    """
    found: dict[str, Any] = {}
    if "entropy" in problem.want:
        found["entropy"] = _entropy(weights)
    if "received" in problem.want:
        found["received"] = weights.sum(-2)
    if "distance" in problem.want:
        found["distance"] = (weights * (grid.k_pos - grid.q_pos).abs()).sum(-1)
    if "weights" in problem.want:
        found["weights"] = weights
    if (chosen := requested(WeightsOf, problem.want)) is not None:
        chosen.check(problem.heads, problem.q_len)
        heads = list(range(problem.heads) if chosen.heads is None else chosen.heads)
        found["chosen_weights"] = weights[:, heads][:, :, list(chosen.rows)]
    if (top := requested(TopKeys, problem.want)) is not None:
        found["top_keys"] = _largest(weights, seen, top.count)
    return found


def _entropy(weights: torch.Tensor) -> torch.Tensor:
    """The entropy in nats. A weight of 0 adds nothing and gets a finite gradient, unlike in 0 · log 0.

    It is never below 0, though a weight may be rounded to more than 1; the gradient is that of the formula.
    """
    entropy = -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)
    return entropy + (entropy.clamp_min(0) - entropy).detach()


def _largest(weights: torch.Tensor, seen: torch.Tensor, count: int) -> TopKeysFound:
    """Indices and weights of the largest, (batch, heads, q_len, count), padded with -1 and 0."""
    ranked = weights.masked_fill(~seen, -math.inf)  # weights of random features may be negative
    largest, indices = ranked.topk(min(count, ranked.shape[-1]), dim=-1)
    missing = largest == -math.inf
    largest, indices = largest.masked_fill(missing, 0), indices.masked_fill(missing, -1)
    short = count - largest.shape[-1]
    pad = torch.nn.functional.pad
    return TopKeysFound(pad(indices, (0, short), value=-1), pad(largest, (0, short)))
