"""A band of diagonals: the simple pattern that windows and causality are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.patterns.algebra import NOTHING, Not, both
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.causal import Causal
from regard.patterns.key_span import KeySpan
from regard.patterns.window import CausalWindow, SlidingWindow


@dataclass(frozen=True)
class Diagonals(Pattern):
    """A query sees the keys at distances `-back <= k_pos - q_pos <= ahead`; None for no end, below 0 for a gap.

    >>> Diagonals(back=2, ahead=-1).dense(3, 3).int().tolist()
    [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    """

    back: int | None = None
    ahead: int | None = None

    def __post_init__(self) -> None:
        for name in ("back", "ahead"):
            end = plain(f"Diagonals' {name}", getattr(self, name))
            if end is not None and not is_whole(end):
                raise ArgumentError(f"Diagonals({name}={shown(end)}): it is a whole number, or None for no end")
            object.__setattr__(self, name, end if end is None else whole(f"Diagonals' {name}", end))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = k_pos - q_pos
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.back is not None:
            seen &= distance >= -self.back
        return seen if self.ahead is None else seen & (distance <= self.ahead)

    def band(self) -> Band:
        return Band(left=self.back, right=self.ahead)

    def __str__(self) -> str:
        return f"diagonals({_word(self.back)}, {_word(self.ahead)})"


def from_band(band: Band) -> Pattern:
    """The pattern with this band, in the fewest and best known words."""
    if band.shows_nobody:
        return NOTHING
    left, right = band.left, band.right
    if left is None and right == 0:
        diagonals: list[Pattern] = [Causal()]
    elif left is not None and right == 0:
        diagonals = [CausalWindow(left + 1)]
    elif left is not None and left == right:
        diagonals = [SlidingWindow(2 * left)]
    elif left == -1 and right is None:
        diagonals = [Not(Causal())]
    else:
        diagonals = [] if left is None and right is None else [Diagonals(left, right)]
    start = max(0, band.start or 0)
    span = [] if start == 0 and band.stop is None else [KeySpan(start, band.stop)]
    return both(*diagonals, *span)


def _word(end: int | None) -> str:
    return "all" if end is None else str(end)
