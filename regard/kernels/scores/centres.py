"""The term of a score that falls with the distance from a predicted centre."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.mechanisms.scores.base import AroundCentre
from regard.patterns import Grid

if TYPE_CHECKING:
    from regard.kernels.scores.blocks import Block


class Centres:
    """`- (j - p)² / (2 σ²)`, and -inf where a key is farther from p than the window; its gradient goes to `to_share`.

    Args:
        score: the window.
        share: which share of the live keys lies before p, (batch, heads, q_len), in the dtype of the scores.
        first: position of the first live key, (batch or 1, heads or 1, 1).
        count: how many live keys there are, likewise.
        grid: where the keys stand.
    """

    def __init__(
        self, score: AroundCentre, share: torch.Tensor, first: torch.Tensor, count: torch.Tensor, grid: Grid
    ) -> None:
        self._score, self._count = score, count.to(share.dtype)
        self._places = first + share * self._count  # p, (batch, heads, q_len)
        self._k_pos = grid.k_pos.to(share.dtype)
        self._sums = torch.zeros_like(share)

    def add_to(self, block: Block, by_head: torch.Tensor, unit: float) -> None:
        """Add the term, in this unit, to the scores of a block, (batch, heads, rows, keys)."""
        apart = self._apart(block)
        by_head.addcmul_(apart, apart, value=-unit * self._score.precision / 2)
        by_head.masked_fill_(apart.abs_() > self._score.window, -math.inf)

    def send(self, block: Block, gradient: torch.Tensor) -> None:
        """Take what the gradient of a block's scores, (batch, heads, rows, keys), sends to p."""
        self._sums[block.lines] += (gradient * self._apart(block)).sum(-1)

    @property
    def to_share(self) -> torch.Tensor:
        """The gradient of the share, (batch, heads, q_len)."""
        return self._sums * self._score.precision * self._count

    def _apart(self, block: Block) -> torch.Tensor:
        return self._k_pos[block.columns] - self._places[block.lines][..., None]


def live_keys(problem: Problem, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """The first key that a query of a call sees, and how many there are from it to the last one, (batch or 1, heads
    or 1, 1) each."""
    seen = problem.pattern.visible_keys(grid)
    if seen is None or not len(grid.keys):
        whole = torch.tensor([grid.keys.start, len(grid.keys)], device=grid.device).view(2, 1, 1, 1)
        return whole[0], whole[1]
    places = torch.arange(len(grid.keys), device=grid.device)
    first = places.where(seen, len(grid.keys)).amin(-1, keepdim=True)
    stop = (places + 1).where(seen, 0).amax(-1, keepdim=True)
    return first + grid.keys.start, (stop - first).clamp_min(0)


def centres(score: AroundCentre, problem: Problem, operands: Operands, share: torch.Tensor) -> Centres:
    """The term of a call."""
    return Centres(score, share, *live_keys(problem, operands.grid), operands.grid)
