"""Merging attention over disjoint sets of keys into attention over all: `merge` at once, `Merging` as pieces come.

    log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) output_p

Source: Milakov and Gimelshein 2018, Online normalizer calculation for softmax.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def merge(pieces: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge attention over disjoint sets of keys: outputs (..., v_dim), weighted by their log-sum-exp (...).

    log_sum_exp = log Σ exp(lse_p), output = Σ exp(lse_p - log_sum_exp) output_p; zeros for rows empty in every piece.
    """
    outputs = torch.stack([output for output, _ in pieces])
    sums = torch.stack([log_sum_exp for _, log_sum_exp in pieces])
    empty_rows = (sums == -math.inf).all(0)
    safe = sums.masked_fill(empty_rows, 0)
    total = safe.logsumexp(0)
    # They add up to 1 even if log-sum-exps are large.
    shares = safe.softmax(0).masked_fill(empty_rows, 0)[..., None]
    output = (outputs.to(shares.dtype) * shares).sum(0).to(outputs.dtype)
    return output, total.masked_fill(empty_rows, -math.inf)


class Merging:
    """Pieces merged as they come, in one dtype; log-sum-exps are rounded once, at the end.

    mean: the sum of outputs with weights exp(lse_p - largest), (batch, heads, q_len, v_dim); largest: of the
    log-sum-exps so far, and total: the sum of those weights, (batch, heads, q_len). What rounding adds to `total` is
    kept in `excess` and taken off the next weight: hundreds of equal weights would all be rounded in one direction.

    Source: Further remarks on reducing truncation errors, Kahan 1965 (for `excess`).
    """

    def __init__(self, mean: torch.Tensor, largest: torch.Tensor) -> None:
        """Begin with one piece, whose tensors are changed; or with none: zeros and -inf."""
        self.mean, self.largest = mean, largest
        self.total = (largest != -math.inf).to(largest.dtype)
        self.excess = torch.zeros_like(self.total)

    def add(
        self, lines: Any, output: torch.Tensor, log_sum_exp: torch.Tensor, first: bool = False
    ) -> None:
        """Merge a piece of the rows at `lines`, an index of (batch, heads, q_len).

        With `first`, these rows had no piece before, so that this one is copied, which is faster.
        """
        mean = self.mean[lines]
        largest = self.largest[lines]
        total = self.total[lines]
        excess = self.excess[lines]
        if first:
            mean.copy_(output)
            largest.copy_(log_sum_exp)
            total.copy_(log_sum_exp != -math.inf)
            return
        larger = torch.maximum(largest, log_sum_exp)
        safe = larger.masked_fill(larger == -math.inf, 0)
        before = (largest - safe).exp_()
        share = (log_sum_exp - safe).exp_()
        mean.mul_(before[..., None]).addcmul_(output, share[..., None])
        share.sub_(excess.mul_(before))
        total.mul_(before)
        summed = total + share
        excess.copy_((summed - total).sub_(share))
        total.copy_(summed)
        largest.copy_(larger)

    def merged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp of all pieces; nothing can be added any more."""
        too_large = self.largest == math.inf  # scores too large to be numbers
        added = self.total.log().masked_fill_(too_large, 0)
        output = self.mean.div_(self.total.clamp_min_(1)[..., None])
        return output, self.largest.add_(added)
