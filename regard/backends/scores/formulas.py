"""The score of each pair of a score block: a dot product, a sum of tanh, or the distance from a predicted centre.

Queries are (units, lines, head_dim), keys (units, keys, head_dim), scores (units, lines, keys), as in `blocks`. A sum
of tanh is computed without all of its terms in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch

from regard.backends.scores.blocking import ScoreBlock, Workspace
from regard.backends.scores.factor import divided_factor
from regard.core import costs
from regard.core.problem import Problem
from regard.mechanisms.scores import AroundCentre, TanhSum
from regard.patterns.grid import Grid
from regard.patterns.visible import visible_keys

# Terms of tanh sums that are computed at once. On CPU 512 KiB in float32, which fit a core's cache with the scores.
SLAB = 1 << 17
SLAB_ELSEWHERE = 1 << 22

Slab = tuple[slice, slice, slice, slice]  # units, heads of a group, rows, keys


def score_flops(problem: Problem) -> float:
    """Floating-point operations that take as long as computing the score of one pair."""
    of_a_number = costs.TANH_TERM if sums_tanh(problem) else 2
    return of_a_number * problem.head_dim


def score_flops_backward(problem: Problem) -> float:
    """Floating-point operations that take as long as computing the score of one pair again, and its gradients."""
    of_a_number = costs.TANH_TERM + costs.TANH_TERM_BACKWARD if sums_tanh(problem) else 5
    return of_a_number * problem.head_dim


def sums_tanh(problem: Problem) -> bool:
    """Whether the scores are sums of tanh, also around a centre."""
    score = getattr(problem.mechanism, "score", None)
    if isinstance(score, AroundCentre):
        score = score.score
    return isinstance(score, TanhSum)


class Dots:
    """`q · k * scale`, in blocks: `compute` writes the scores times a factor, of queries that `prepared` has changed;
    `send` adds the gradients of queries and keys, given that of the scores without the factor."""

    def __init__(self, scale: float, factor: float) -> None:
        self._carried, self._powers = divided_factor(factor)
        # baddbmm multiplies keys by alpha first, and a large one would make them infinite.
        self._scale, self._powers_backward = divided_factor(scale)
        # Prepared queries contain a part of the factor already.
        self._scale_of_prepared = self._scale / self._carried if factor else 0.0

    def prepared(self, q: torch.Tensor) -> torch.Tensor:
        return q * self._carried

    def compute(
        self, block: ScoreBlock, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor
    ) -> None:
        torch.bmm(q, k.mT, out=out)
        for power in self._powers:
            out.mul_(power)

    def send(
        self,
        block: ScoreBlock,
        gradient: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        dq: torch.Tensor,
        dk: torch.Tensor,
    ) -> None:
        for power in self._powers_backward:
            gradient = gradient * power
        dq.baddbmm_(gradient, k, alpha=self._scale)
        dk.baddbmm_(gradient.mT, q, alpha=self._scale_of_prepared)


class TanhSums:
    """`v · tanh(q + k) * scale`, by the methods of `Dots` and slab by slab.

    A slab is some pairs with all terms, (units, heads, rows, keys, terms).

    Args:
        energy: v, (heads or 1, terms), in the dtype of the scores.
        scale: multiplies the sums.
        factor: multiplies them in `compute`, instead of the scale.
        learns: whether `send` will be called, which adds the gradient of v to `to_energy`.
    """

    def __init__(self, energy: torch.Tensor, scale: float, factor: float, learns: bool) -> None:
        self.energy = energy
        self._carried, self._powers = divided_factor(factor)
        self._carried_backward, self._powers_backward = divided_factor(scale)
        self.to_energy = torch.zeros_like(energy) if learns else None
        self._terms = energy.shape[-1]
        slab = SLAB if energy.device.type == "cpu" else SLAB_ELSEWHERE
        self._slab = max(slab, self._terms)
        self._workspace = Workspace(energy.new_empty(self._slab))
        self._one = energy.new_ones(())

    def prepared(self, q: torch.Tensor) -> torch.Tensor:
        return q

    def compute(
        self, block: ScoreBlock, q: torch.Tensor, k: torch.Tensor, out: torch.Tensor
    ) -> None:
        shape = self._shape(block)
        q = q.view(*shape[:3], 1, -1)
        k = k[:, None, None]
        out = out.view(shape)
        energy = (self._energies(block) * self._carried)[..., None]  # (units, heads, terms, 1)
        for units, heads, rows, keys in self._slabs(shape):
            terms = self._tanh(q[units, heads, rows], k[units, :, :, keys])
            sums = terms.flatten(2, 3) @ energy[units, heads]  # (units, heads, rows * keys, 1)
            out[units, heads, rows, keys] = sums.view(terms.shape[:-1])
        for power in self._powers:
            out.mul_(power)

    def send(
        self,
        block: ScoreBlock,
        gradient: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        dq: torch.Tensor,
        dk: torch.Tensor,
    ) -> None:
        """With t = tanh(q + k) and G the gradient of its score: dv = Σ G t, dq = v Σ_keys G (1 - t²), dk likewise."""
        shape = self._shape(block)
        for power in self._powers_backward:
            gradient = gradient * power
        gradient = gradient.view(*shape[:3], 1, shape[3])
        q = q.view(*shape[:3], 1, -1)
        dq = dq.view(*shape[:3], 1, -1)
        k = k[:, None, None]  # (units, 1, 1, keys, terms)
        # (units, heads, 1, terms)
        energy = (self._energies(block) * self._carried_backward)[:, :, None]
        to_energy = torch.zeros_like(energy)
        for units, heads, rows, keys in self._slabs(shape):
            pull = gradient[units, heads, rows, :, keys]  # (units, heads, rows, 1, keys)
            terms = self._tanh(q[units, heads, rows], k[units, :, :, keys])
            to_energy[units, heads] += pull.flatten(2)[:, :, None] @ terms.flatten(2, 3)
            slopes = torch.addcmul(self._one, terms, terms, value=-1, out=terms)
            strength = energy[units, heads]
            dq[units, heads, rows] += (pull @ slopes) * strength[..., None, :]
            to_keys = slopes.mul_(pull.mT)  # (units, heads, rows, keys, terms)
            # (units, heads, keys, terms)
            to_keys = to_keys[:, :, 0] if pull.shape[2] == 1 else to_keys.sum(2)
            for head in range(pull.shape[1]):
                dk[units, keys].addcmul_(to_keys[:, head], strength[:, head])
        self._add_to_energy(block, to_energy)

    def _tanh(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """tanh of the sums of queries (units, heads, rows, 1, terms) and keys (units, 1, 1, keys, terms)."""
        shape = (*q.shape[:3], k.shape[3], self._terms)
        return torch.add(q, k, out=self._workspace.shaped(shape)).tanh_()

    def _shape(self, block: ScoreBlock) -> tuple[int, int, int, int]:
        """(units, heads of a group, rows, keys)."""
        batch, heads, rows, keys = block.shape
        return batch * block.kv_heads, heads // block.kv_heads, rows, keys

    def _slabs(self, shape: tuple[int, int, int, int]) -> Iterator[Slab]:
        """The slabs of a block: as many keys as fit, then rows, heads of a group, and units."""
        fitting = self._slab // self._terms
        by_axis: list[list[slice]] = []
        for size in reversed(shape):
            step = min(size, fitting)
            fitting //= step
            starts = range(0, size, step)
            by_axis.append([slice(start, min(start + step, size)) for start in starts])
        yield from product(*reversed(by_axis))  # ty: ignore[invalid-yield]

    def _energies(self, block: ScoreBlock) -> torch.Tensor:
        """v of a block's heads, (units, heads of a group, terms)."""
        own = self.energy if self.energy.shape[0] == 1 else self.energy[block.heads]
        own = own.expand(block.shape[1], -1).unflatten(0, (block.kv_heads, -1))
        return own.expand(block.shape[0], *own.shape).flatten(0, 1)

    def _add_to_energy(self, block: ScoreBlock, gradient: torch.Tensor) -> None:
        """Add the gradient of a block's v, (units, heads of a group, 1, terms)."""
        assert self.to_energy is not None
        by_head = gradient.view(block.shape[0], block.shape[1], -1).sum(0) * self._carried_backward
        if self.energy.shape[0] == 1:
            self.to_energy += by_head.sum(0, keepdim=True)
        else:
            self.to_energy[block.heads] += by_head


class Centres:
    """`- (j - p)² / (2 σ²)`, and -inf where a key is farther from p than the window; its gradient goes to `to_share`.

    Args:
        score: the window.
        share: the share of the visible keys before p, (batch, heads, q_len), in the dtype of the scores.
        first: position of the first visible key, (batch or 1, heads or 1, 1).
        count: number of keys from it to the last visible one, in the same shape.
        grid: the positions of queries and keys.
    """

    def __init__(
        self,
        score: AroundCentre,
        share: torch.Tensor,
        first: torch.Tensor,
        count: torch.Tensor,
        grid: Grid,
    ) -> None:
        self._score = score
        self._count = count.to(share.dtype)
        self._centres = first + share * self._count  # p, (batch, heads, q_len)
        self._k_pos = grid.k_pos.to(share.dtype)
        self._sums = torch.zeros_like(share)

    def add_to(self, block: ScoreBlock, by_head: torch.Tensor, unit: float) -> None:
        """Add the term, in this unit, to the scores of a block, (batch, heads, rows, keys)."""
        distances = self._distances(block)
        by_head.addcmul_(distances, distances, value=-unit * self._score.precision / 2)
        by_head.masked_fill_(distances.abs_() > self._score.window, -math.inf)

    def send(self, block: ScoreBlock, gradient: torch.Tensor) -> None:
        """Add the gradient of p, given that of a block's scores (batch, heads, rows, keys)."""
        self._sums[block.lines] += (gradient * self._distances(block)).sum(-1)

    @property
    def to_share(self) -> torch.Tensor:
        """The gradient of the share, (batch, heads, q_len)."""
        return self._sums * self._score.precision * self._count

    def _distances(self, block: ScoreBlock) -> torch.Tensor:
        """j - p of a block's pairs, (batch, heads, rows, keys)."""
        return self._k_pos[block.columns] - self._centres[block.lines][..., None]


def visible_span(problem: Problem, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """The position of the first visible key of a call, and the number of keys from it to the last visible one.

    Both are (batch or 1, heads or 1, 1).
    """
    visible = visible_keys(problem.pattern, grid)
    if visible is None or not len(grid.keys):
        ends = torch.tensor([grid.keys.start, len(grid.keys)], device=grid.device)
        first, count = ends.view(2, 1, 1, 1)
        return first, count
    columns = torch.arange(len(grid.keys), device=grid.device)
    first = columns.where(visible, len(grid.keys)).amin(-1, keepdim=True)
    stop = (columns + 1).where(visible, 0).amax(-1, keepdim=True)
    return first + grid.keys.start, (stop - first).clamp_min(0)
