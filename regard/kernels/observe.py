"""Statistics from blocks of weights, so that none but `weights` itself needs them all at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from regard.detail import TopKeysFound
from regard.patterns import Grid
from regard.problem import Problem
from regard.statistics import TopKeys


@dataclass(frozen=True)
class WeightsBlock:
    """Weights of some rows over some keys: weights and seen (batch, heads, rows, keys); seen = the pair is allowed."""

    grid: Grid
    weights: torch.Tensor
    seen: torch.Tensor


def observe(problem: Problem, keys: range, blocks: Iterable[WeightsBlock]) -> dict[str, Any]:
    """The statistics that the problem wants, but log_sum_exp, over `keys`; blocks come in the order of their rows."""
    rows: dict[str, list[Any]] = {"entropy": [], "weights": [], "indices": [], "top": []}
    received: torch.Tensor | int = 0
    top = next((want for want in problem.want if isinstance(want, TopKeys)), None)
    for block in blocks:
        here = (block.grid.keys.start - keys.start, keys.stop - block.grid.keys.stop)  # keys before and after
        if "entropy" in problem.want:
            rows["entropy"].append(_entropy(block.weights))
        if "received" in problem.want:
            received = received + torch.nn.functional.pad(block.weights.sum(-2), here)
        if "weights" in problem.want:
            rows["weights"].append(torch.nn.functional.pad(block.weights, here))
        if top is not None:
            indices, largest = _largest(block, top.count)
            rows["indices"].append(torch.where(indices < 0, indices, indices + here[0]))
            rows["top"].append(largest)
    found: dict[str, Any] = {name: torch.cat(rows[name], 2) for name in ("entropy", "weights") if rows[name]}
    if "received" in problem.want:
        found["received"] = received
    if top is not None:
        found["top_keys"] = TopKeysFound(torch.cat(rows["indices"], 2), torch.cat(rows["top"], 2))
    return found


def _entropy(weights: torch.Tensor) -> torch.Tensor:
    """In nats; a weight of 0 adds nothing and, unlike the derivative of 0 log 0, sends a finite gradient."""
    return -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)


def _largest(block: WeightsBlock, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and weights of the largest, (batch, heads, rows, count), padded with -1 and 0."""
    ranked = block.weights.masked_fill(~block.seen, -1)
    largest, indices = ranked.topk(min(count, ranked.shape[-1]), dim=-1)
    missing = largest < 0
    largest, indices = largest.masked_fill(missing, 0), indices.masked_fill(missing, -1)
    short = count - largest.shape[-1]
    pad = torch.nn.functional.pad
    return pad(indices, (0, short), value=-1), pad(largest, (0, short))
