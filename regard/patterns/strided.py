"""The neighbourhood, and every so-manieth key beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from regard.patterns.arguments import kept_whole, yes_or_no
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.diagonals import Diagonals
from regard.patterns.lattice import Lattice


@dataclass(frozen=True)
class Strided(Pattern):
    """A query may see keys nearer than `stride`, and those at distances divisible by it.

    `|i - j| < stride` or `(i - j) % stride == 0`. With `& Causal()` it is the paper's pattern; its two parts for
    two heads are `CausalWindow(stride)` and `Strided(stride, local=False) & Causal()` in a `PerHead`.

    Args:
        stride: positions between the keys of the second part.
        local: False for the second part alone.

    Source: Sparse Transformer, Child et al. 2019, section 4.3.

    >>> Strided(2, local=False).dense(1, 5).int().tolist()
    [[1, 0, 1, 0, 1]]
    """

    stride: int
    local: bool = True

    def __post_init__(self) -> None:
        kept_whole(self, "stride", "Strided's stride", 1)
        yes_or_no("Strided's local", self.local)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs()
        far = distance % self.stride == 0
        return far | (distance < self.stride) if self.local else far

    def band(self) -> Band | None:
        return Band() if self.stride == 1 else None

    def structure(self) -> Pattern:
        return self._parts

    @cached_property
    def _parts(self) -> Pattern:
        far = Lattice(self.stride)
        return Diagonals(self.stride - 1, self.stride - 1) | far if self.local else far

    def __str__(self) -> str:
        return f"strided({self.stride})" if self.local else f"strided({self.stride}, local=false)"
