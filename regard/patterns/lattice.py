"""Every so-manieth key, counted from the query's own."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from regard.patterns.arguments import kept_whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.full import Full
from regard.patterns.part import Part, everything
from regard.patterns.ranges import Segments, union

MOST_RUNS = 64  # beyond it, naming runs of keys costs more than it saves


@dataclass(frozen=True)
class Lattice(Part):
    """A query may see the keys at distances divisible by `stride`: `(i - j) % stride == 0`.

    >>> Lattice(2).dense(3, 3).int().tolist()
    [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    """

    stride: int

    def __post_init__(self) -> None:
        kept_whole(self, "stride", "Lattice's stride", 1)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (q_pos - k_pos) % self.stride == 0

    def band(self) -> Band | None:
        return Band() if self.stride == 1 else None

    @property
    def period(self) -> int:
        return 1

    @property
    def key_period(self) -> int:
        return self.stride

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """Neighbouring queries see one run of keys in each stride; a single query sees it whole."""
        if self.stride == 1:
            return Segments(everything(k_len), everything(k_len))
        length = last - first + 1
        if length >= self.stride or k_len > MOST_RUNS * self.stride:
            return Segments((), everything(k_len))
        low = first % self.stride - self.stride
        runs = (range(max(0, at), min(k_len, at + length)) for at in range(low, k_len, self.stride))
        some = union(runs)
        return Segments(some if length == 1 else (), some)

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        left = self.stride // gcd(self.stride, stride)
        return Full() if left == 1 else Lattice(left)

    def __str__(self) -> str:
        return f"lattice({self.stride})"
