"""Blocks of positions that see only themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.patterns.arguments import kept_whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.part import Part
from regard.patterns.ranges import Segments, union
from regard.patterns.reach import Reach


@dataclass(frozen=True)
class SameBlock(Part):
    """A query may see the keys of its own block of `size` positions: `i // size == j // size`.

    >>> SameBlock(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        kept_whole(self, "size", "SameBlock's size", 1)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return q_pos // self.size == k_pos // self.size

    def band(self) -> Band | None:
        return Band(left=0, right=0) if self.size == 1 else None

    @property
    def period(self) -> int:
        return self.size

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        low, high = first // self.size, last // self.size
        seen = union([range(max(0, low * self.size), min(k_len, (high + 1) * self.size))])
        return Segments(seen if low == high else (), seen)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        if stride % self.size == 0:
            return Band(left=0, right=0).as_pattern()
        return SameBlock(self.size // stride) if self.size % stride == 0 else None

    def reach(self, layers: int = 1) -> Reach:
        return Reach(self.size - 1, self.size - 1)  # no layer leaves the block

    def __str__(self) -> str:
        return f"same_block({self.size})"
