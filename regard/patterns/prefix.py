"""The beginning, for everyone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.patterns.arguments import kept_whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern


@dataclass(frozen=True)
class Prefix(Pattern):
    """Every query may see the first `length` keys: `j < length`; `Causal() | Prefix(n)` is a prefix language model.

    >>> Prefix(2).dense(1, 4).int().tolist()
    [[1, 1, 0, 0]]
    """

    length: int

    query_free = True
    compares_positions = False

    def __post_init__(self) -> None:
        kept_whole(self, "length", "Prefix's length", 0)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return torch.broadcast_tensors(q_pos, k_pos)[1] < self.length

    def band(self) -> Band:
        return Band(start=0, stop=self.length)

    def __str__(self) -> str:
        return f"prefix({self.length})"
