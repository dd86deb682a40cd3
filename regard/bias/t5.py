"""T5's bias: distances fall into buckets, and each head learns a number for each bucket."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.arguments import whole, yes_or_no
from regard.bias.base import Bias
from regard.errors import ArgumentError, ShapeError


class T5Relative(nn.Module, Bias):
    """Near distances have a bucket each, farther ones share buckets that widen as a logarithm, up to `max_distance`.

        bias = weight[bucket(k_pos - q_pos), head]

    Args:
        heads: query heads.
        buckets: how many numbers a head learns; half of them for keys ahead if `bidirectional`.
        max_distance: from here on everything is in the last bucket.
        bidirectional: tell keys ahead from keys behind; otherwise every key ahead counts as the query's own place.

    Raises:
        ArgumentError: sizes that leave no bucket to a distance.

    Source: Exploring the Limits of Transfer Learning, Raffel et al. 2020, section 2.1; the rule of the buckets is
    that of its code, so that `weight` holds what T5's `relative_attention_bias.weight` holds.

    >>> bias = T5Relative(heads=2, buckets=8, max_distance=16)
    >>> bias.bucket(torch.tensor([-20, -3, -1, 0, 1, 3, 20])).tolist()
    [3, 2, 1, 0, 5, 6, 7]
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        heads, buckets = whole("T5Relative's heads", heads), whole("T5Relative's buckets", buckets)
        max_distance = whole("T5Relative's max_distance", max_distance)
        yes_or_no("T5Relative's bidirectional", bidirectional)
        sided = buckets // 2 if bidirectional else buckets
        if heads < 1 or sided < 2 or max_distance <= sided // 2:
            raise ArgumentError(
                f"T5Relative(heads={heads}, buckets={buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}): it needs a head, 2 buckets for each side it tells apart, and a "
                f"max_distance beyond the {sided // 2} distances with a bucket of their own"
            )
        self.heads, self.buckets, self.max_distance, self.bidirectional = heads, buckets, max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, distances: torch.Tensor) -> torch.Tensor:
        """The bucket of each k_pos - q_pos, 0 to buckets - 1."""
        sided = self.buckets // 2 if self.bidirectional else self.buckets
        ahead = (distances > 0) * sided if self.bidirectional else 0
        far = distances.abs() if self.bidirectional else (-distances).clamp_min(0)
        exact = sided // 2
        share = torch.log(far.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        shared = (exact + (share * (sided - exact)).long()).clamp_max(sided - 1)
        return ahead + torch.where(far < exact, far, shared)

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.weight[self.bucket(distances)].T

    @property
    def learns(self) -> bool:
        return self.weight.requires_grad

    def check(self, heads: int) -> None:
        if heads != self.heads:
            raise ShapeError(
                f"this T5Relative was made for {self.heads} heads and the call has {heads}; make one for {heads}"
            )

    def extra_repr(self) -> str:
        return (
            f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )
