"""The likeliest ids of a large vocabulary, and what all of it adds up to, with few passes over the scores."""

from __future__ import annotations

import torch

BLOCK = 128  # ids, of which the largest score is looked at first
NEAR = 1 << 18  # scores that stay near a core while they are summed up


def likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest scores of each row, the largest first, and where they stand.

    The largest of all stand in the blocks with the largest maxima, so that all but these are read once and no more.

    Args:
        scores: (batch, vocab_size), without NaN.
        count: at least 1; as many as there are where there are fewer.

    Returns:
        Scores and ids, both (batch, count).

    >>> likeliest(torch.tensor([[1.0, 5.0, 3.0]]), 2)[1].tolist()
    [[1, 2]]
    """
    blocks = scores.shape[1] // BLOCK
    if blocks <= 2 * count:
        return _largest(scores, min(count, scores.shape[1]))
    whole, rest = scores[:, : blocks * BLOCK], scores[:, blocks * BLOCK :]
    each = whole.unflatten(1, (blocks, BLOCK))
    best = _largest(each.amax(-1), count)[1]  # the blocks, (batch, count)
    inside = each.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, at = _largest(torch.cat([inside, rest], 1), count)
    ids = best.gather(1, (at // BLOCK).clamp(max=count - 1)) * BLOCK + at % BLOCK
    return values, torch.where(at < count * BLOCK, ids, at + (blocks - count) * BLOCK)


def log_total(scores: torch.Tensor) -> torch.Tensor:
    """log Σ exp(scores) of each row, (batch, 1), a few rows at a time."""
    rows = max(1, NEAR // max(1, scores.shape[1]))
    return torch.cat([part.logsumexp(-1, keepdim=True) for part in scores.split(rows)])


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = scores.max(-1, keepdim=True) if count == 1 else scores.topk(count)  # a third of the time, and the first
    return found.values, found.indices
