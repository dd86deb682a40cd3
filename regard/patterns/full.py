"""Everyone sees everyone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.patterns.band import Band
from regard.patterns.base import Pattern


@dataclass(frozen=True)
class Full(Pattern):
    """Every query may see every key.

    >>> Full().count(3, 4), str(Full())
    (12, 'full')
    """

    query_free = True
    compares_positions = False

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        q_pos, k_pos = torch.broadcast_tensors(q_pos, k_pos)
        return torch.ones_like(k_pos, dtype=torch.bool)

    def band(self) -> Band:
        return Band()

    def __str__(self) -> str:
        return "full"
