"""A window with gaps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from regard.patterns.arguments import kept_whole, whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.diagonals import Diagonals
from regard.patterns.lattice import Lattice


@dataclass(frozen=True)
class DilatedWindow(Pattern):
    """A query may see its own key and `size // 2` on each side, `dilation` positions apart.

    `(i - j) % dilation == 0` and `|i - j| <= dilation · (size // 2)`.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> DilatedWindow(2, dilation=3).dense(1, 7, q_start=3).int().tolist()
    [[1, 0, 0, 1, 0, 0, 1]]
    """

    size: int
    dilation: int

    def __post_init__(self) -> None:
        kept_whole(self, "size", "DilatedWindow's size", 1)
        kept_whole(self, "dilation", "DilatedWindow's dilation", 1)
        whole("DilatedWindow's span", self.span)

    @property
    def span(self) -> int:
        """Distance to the farthest key on each side."""
        return self.dilation * (self.size // 2)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs()
        return (distance % self.dilation == 0) & (distance <= self.span)

    def band(self) -> Band | None:
        return Band(left=self.span, right=self.span) if self.dilation == 1 or self.span == 0 else None

    def structure(self) -> Pattern:
        return self._parts

    @cached_property
    def _parts(self) -> Pattern:
        return Lattice(self.dilation) & Diagonals(self.span, self.span)

    def __str__(self) -> str:
        return f"dilated_window({self.size}, {self.dilation})"
