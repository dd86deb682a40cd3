"""No query sees what comes after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.patterns.band import Band
from regard.patterns.base import Pattern


@dataclass(frozen=True)
class Causal(Pattern):
    """A query may see the keys at its own position and before: `j <= i`.

    >>> Causal().dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return k_pos <= q_pos

    def band(self) -> Band:
        return Band(right=0)

    def __str__(self) -> str:
        return "causal"
