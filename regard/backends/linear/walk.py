"""Linear attention chunk by chunk: the sum over earlier keys, what a chunk adds to it, and the order of the steps.

    total_i = Σ_j e_ij (q_i · k_j) [v_j, 1],  e_ij = exp(k_log_j + Σ decay_log_t over j < t <= i)

The last entry of a total is the denominator of its row; the others divided by it are the output. With c_i the sum of
decay_log up to i and ℓ_j = k_log_j - c_j, e_ij is exp(c_i + ℓ_j). Totals are returned divided by exp(c_i + M_i), where
M_i is the largest ℓ_j up to i, so that nothing overflows and no later key affects an earlier total.

Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 16 to 20, a chunk at a time.

Letters: u units (batch row and key/value head), g query heads of each, n positions of the chunk, f features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn import functional

FAINTEST = -1e30  # in place of -inf, the logarithm of 0, since -inf - -inf is NaN


@dataclass(frozen=True)
class Sums:
    """`exp(log) · total` is Σ_j e_ij k_j [v_j, 1]ᵀ over the keys so far, for the last position i.

    total: (u, f, v_dim + 1). log: (u, 1), -inf before the first key; None where no key has a logarithm.
    """

    total: torch.Tensor
    log: torch.Tensor | None

    @classmethod
    def none(cls, like: torch.Tensor, features: int, v_dim: int, scaled: bool) -> Sums:
        """The sum of no keys, with the units, dtype and device of `like` (u, ...)."""
        log = like.new_full((len(like), 1), -torch.inf) if scaled else None
        return cls(like.new_zeros(len(like), features, v_dim + 1), log)

    def unnormalised(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Totals (u, g, n, v_dim + 1) of queries (u, g, n, f) after all these keys over exp(log), and log (u, 1).

        log is None if no key has a logarithm; then totals are not divided.
        """
        return torch.bmm(q.flatten(1, 2), self.total).view(*q.shape[:3], self.total.shape[-1]), self.log

    def send(self, q: torch.Tensor, grad: torch.Tensor, later: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From the gradient of the totals (u, g, n, v_dim + 1): that of q, and `later` plus that of the sum."""
        q, grad, shape = q.flatten(1, 2), grad.flatten(1, 2), q.shape
        return torch.bmm(grad, self.total.mT).view(shape), torch.baddbmm(later, q.mT, grad)


KeyGradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Gradients of k (u, n, f), v (u, n, v_dim + 1), the sum before (u, f, v_dim + 1), and decay_log (u, n) if wanted."""


class Chunk:
    """The keys after `before`: k (u, n, f), v with a column of ones (u, n, v_dim + 1), k_log and decay_log (u, n).

    Both logarithms are given if `before` has a log, else neither; then fewer operations are needed.
    """

    def __init__(
        self,
        before: Sums,
        k: torch.Tensor,
        v: torch.Tensor,
        k_log: torch.Tensor | None = None,
        decay_log: torch.Tensor | None = None,
    ) -> None:
        self.before, self.k, self.v = before, k, v
        self.scaled = before.log is not None
        if before.log is None or k_log is None or decay_log is None:
            return
        self.k_log, self.decay_log = k_log, decay_log.double()
        # In float64: of strong decays c_i is large, and its rounding errors would be those of the weights.
        self.decayed = self.decay_log.cumsum(-1)  # c_i, (u, n)
        self.log = k_log - self.decayed  # ℓ_j, (u, n)
        highest = torch.maximum(before.log, self.log).detach().cummax(-1).values
        self.highest = highest.clamp_min(FAINTEST)  # M_i, (u, n); it cancels, so it needs no gradient
        self.scale = self.highest + self.decayed  # what totals are divided by, (u, n)
        self.learning = torch.is_grad_enabled() and decay_log.requires_grad
        # If decays need gradients, their sum is computed for each pair of positions: slower, more exact.
        if self.learning:
            self.scale = self.scale.detach()

    @cached_property
    def carried(self) -> torch.Tensor:
        """The factor of the sum before in the total of each position, (u, 1, n, 1)."""
        assert self.before.log is not None
        log = self.before.log.detach() - self.scale + self.decayed if self.learning else self.before.log - self.highest
        return self._exp(log)[:, None, :, None]

    @cached_property
    def pairs(self) -> torch.Tensor:
        """exp(ℓ_j - M_i) where j <= i, (u, 1, n, n); above the diagonal any finite number."""
        if self.learning:
            log = (self.k_log[:, None] + _between(self.decay_log) - self.scale[..., None]).tril()
        else:
            log = self.log[:, None] - self.highest[..., None]
            log = log.masked_fill(
                log > 0, 0
            )  # above the diagonal; clamp would stop gradients at 0 from PyTorch 2.15 on
        return self._exp(log)[:, None]

    @cached_property
    def kept(self) -> torch.Tensor:
        """The factor of the sum before in the sum after, (u, 1, 1)."""
        return self.carried[:, 0, -1:]

    @cached_property
    def added(self) -> torch.Tensor:
        """The factor of each key in the sum after, (u, n, 1)."""
        if self.learning:
            later = functional.pad(self.decay_log[:, 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)  # Σ decay_log_t, t > j
            log = self.k_log + later - self.scale[:, -1:]
        else:
            log = self.log - self.highest[:, -1:]
        return self._exp(log)[..., None]

    def _exp(self, x: torch.Tensor) -> torch.Tensor:
        """exp of a difference of float64 logarithms, in the dtype of the keys."""
        return x.to(self.k.dtype).exp()

    def after(self) -> Sums:
        if not self.scaled:
            return Sums(torch.baddbmm(self.before.total, self.k.mT, self.v), None)
        total = torch.baddbmm(self.before.total * self.kept, (self.k * self.added).mT, self.v)
        return Sums(total, self.scale[:, -1:].to(total.dtype))

    def unnormalised(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Totals (u, g, n, v_dim + 1) of queries (u, g, n, f) at these positions over exp(log), and log (u, n)."""
        totals, _ = self.before.unnormalised(q)
        if not self.scaled:
            weights, log = _products(q, self.k).tril_(), None
        else:
            totals, weights, log = (
                totals * self.carried,
                (_products(q, self.k) * self.pairs).tril_(),
                self.scale.to(totals.dtype),
            )
        return totals.flatten(1, 2).baddbmm_(weights.flatten(1, 2), self.v).view(totals.shape), log

    def send_keys(self, later: torch.Tensor, wants_decay: bool) -> KeyGradients:
        """From the gradient of the sum after, (u, f, v_dim + 1): those of the keys."""
        dk, dv, earlier = self._send_after(later)
        return dk, dv, earlier, _crossing(self._pairs_after(dk, earlier)) if wants_decay else None

    def send(
        self, q: torch.Tensor, grad: torch.Tensor, later: torch.Tensor, wants_decay: bool
    ) -> tuple[torch.Tensor, KeyGradients]:
        """From the gradients of totals (u, g, n, v_dim + 1) and of the sum after: that of q, and those of the keys."""
        dk, dv, earlier = self._send_after(later)
        weights, pull = _products(q, self.k).tril_(), _products(grad, self.v).tril_()  # (u, g, n, n)
        weights = weights.mul_(self.pairs) if self.scaled else weights
        dq, before = self.before.send(q, grad * self.carried if self.scaled else grad, earlier)
        by_decay = None
        if wants_decay:
            rows = torch.cat(((q * dq).sum((1, 3))[..., None], (weights * pull).sum(1)), -1)
            by_decay = _crossing(torch.cat((rows, self._pairs_after(dk, earlier)), 1))
        pull = pull.mul_(self.pairs) if self.scaled else pull
        dq.flatten(1, 2).baddbmm_(pull.flatten(1, 2), self.k)
        dk.baddbmm_(pull.flatten(1, 2).mT, q.flatten(1, 2))
        dv.baddbmm_(weights.flatten(1, 2).mT, grad.flatten(1, 2))
        return dq, (dk, dv, before, by_decay)

    def _send_after(self, later: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """From the gradient of the sum after: those of k, of v, and of the sum before."""
        if not self.scaled:
            return self.v @ later.mT, self.k @ later, later
        return self.added * (self.v @ later.mT), (self.k * self.added) @ later, self.kept * later

    def _pairs_after(self, dk: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
        """The last row that `_crossing` reads, (u, 1, n + 1), from the gradients that `_send_after` returns."""
        of_before = (self.before.total * earlier).sum((1, 2))[:, None]
        return torch.cat((of_before, (self.k * dk).sum(-1)), -1)[:, None]


def _between(decay_log: torch.Tensor) -> torch.Tensor:
    """The sum of decay_log_t over j < t <= i, (u, i, j).

    c_i - c_j has the same value, but its gradient has a larger rounding error, for the reason given in `_crossing`.
    """
    return decay_log[..., None].expand(*decay_log.shape, decay_log.shape[-1]).tril(-1).cumsum(1)


def _crossing(pairs: torch.Tensor) -> torch.Tensor:
    """The gradient of decay_log, (u, n), from those of the logarithms of e_ij, (u, rows, n + 1).

    decay_log_t is part of log e_ij where j < t <= i, and only these pairs are summed. If others were summed too, they
    would have to cancel, and their rounding error would be larger than the result where the decay is strong.

    The first column is of all keys before the chunk, the last row of all rows after it; the others are of the chunk.
    """
    _, rows, columns = pairs.shape
    return pairs.cumsum(-1).tril_(columns - rows).sum(1)[:, :-1]


def _products(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The dot product of each (u, g, n, ·) with each (u, n, ·): (u, g, n, n)."""
    return torch.bmm(rows.flatten(1, 2), keys.mT).view(*rows.shape[:3], keys.shape[1])


CHUNK = 64  # positions of a chunk, whose pairs are computed one by one; 64 to 128 are fastest on CPU
BLOCK = 1024  # positions that are added to a sum, or read from it, at once
LONGER, PAIRS = 8, 1 << 26  # on a GPU chunks and blocks are up to so many times as long, with so many pairs at once


def longer_on(device: str, heads: int) -> int:
    """How many times as long chunks and blocks are as on the CPU.

    On a GPU, starting an operation takes longer than computing a short chunk.

    Args:
        device: "cpu" or another device.
        heads: query heads of all batch rows; the pairs of a chunk are in memory for each.
    """
    if device == "cpu":
        return 1
    return next((times for times in (LONGER, 4, 2) if heads * (times * CHUNK) ** 2 <= PAIRS), 1)


@dataclass(frozen=True)
class Step:
    """One step of a walk: keys added to the sum, rows read from it, or as many of both, causally."""

    rows: slice
    keys: slice

    @property
    def reads(self) -> bool:
        return self.rows.stop > self.rows.start

    @property
    def adds(self) -> bool:
        return self.keys.stop > self.keys.start


@dataclass(frozen=True)
class Walk:
    """Which keys each row may look at: row r the keys 0 to `before + r`, or all where there are fewer.

    Rows and keys are counted from 0. Chunks and blocks are `longer` times as long as CHUNK and BLOCK.
    """

    rows: int
    keys: int
    before: int
    longer: int = 1

    @property
    def both(self) -> int:
        """The number of rows that have a key at their own position."""
        return max(0, min(self.rows, self.keys - self.before))

    def steps(self) -> Iterator[Step]:
        """The steps, ordered so that the sum contains the keys that a row may look at when the row is read."""
        none, block = slice(0, 0), self.longer * BLOCK
        yield from (Step(none, keys) for keys in _pieces(0, min(self.before, self.keys), block))
        for rows in _pieces(0, self.both, self.longer * CHUNK):
            yield Step(rows, slice(self.before + rows.start, self.before + rows.stop))
        yield from (Step(rows, none) for rows in _pieces(self.both, self.rows, block))

    def blocks(self) -> Iterator[tuple[slice, slice, Walk]]:
        """The same walk as consecutive smaller ones, each with the rows and keys that it covers."""
        none, block = slice(0, 0), self.longer * BLOCK
        for keys in _pieces(0, min(self.before, self.keys), block):
            size = keys.stop - keys.start
            yield none, keys, Walk(0, size, size, self.longer)
        for rows in _pieces(0, self.both, block):
            size = rows.stop - rows.start
            yield rows, slice(self.before + rows.start, self.before + rows.stop), Walk(size, size, 0, self.longer)
        for rows in _pieces(self.both, self.rows, block):
            yield rows, none, Walk(rows.stop - rows.start, 0, 0, self.longer)


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, stop)) for at in range(start, stop, size))


@dataclass(frozen=True)
class WalkTensors:
    """The tensors that a walk reads.

    q: (batch, kv_heads, group, rows, features). k: (batch, kv_heads, keys, features).
    v: (batch, kv_heads, keys, v_dim). k_log, decay_log: (batch, kv_heads, keys), both or neither.
    least: (batch, kv_heads, rows) in float64, a lower bound of the logarithm of the denominators, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_log: torch.Tensor | None = None
    decay_log: torch.Tensor | None = None
    least: torch.Tensor | None = None

    @property
    def units(self) -> tuple[int, int]:
        """(batch, kv_heads), which the methods below flatten to one axis, u."""
        return self.k.shape[0], self.k.shape[1]

    def start(self) -> Sums:
        like = self.k.new_empty(math.prod(self.units))
        return Sums.none(like, self.k.shape[-1], self.v.shape[-1], self.k_log is not None)

    def chunk(self, before: Sums, keys: slice) -> Chunk:
        """Some of the keys, with a column of ones beside their values for the denominator."""
        k, v = (x[:, :, keys].flatten(0, 1) for x in (self.k, self.v))
        logs = (None if x is None else x[:, :, keys].flatten(0, 1) for x in (self.k_log, self.decay_log))
        return Chunk(before, k, with_ones(v), *logs)

    def queries(self, rows: slice) -> torch.Tensor:
        return self.q[:, :, :, rows].flatten(0, 1)

    def lowest(self, log: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
        """The lower bound of these rows' denominators, (u, 1, n), divided by exp(log) with log (u, n or 1)."""
        if self.least is None:
            return None
        least = self.least[:, :, rows].flatten(0, 1)
        return (least if log is None else least - log).exp()[:, None].to(self.k.dtype)


def with_ones(v: torch.Tensor) -> torch.Tensor:
    """Values (u, n, v_dim) with a column of ones, whose weighted sum is the denominator."""
    return torch.cat((v, v.new_ones(*v.shape[:2], 1)), dim=-1)


def normalised(
    totals: torch.Tensor, lowest: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """From totals (u, g, n, v_dim + 1): the outputs (u, g, n, v_dim) and the denominators (u, g, n).

    Denominators are raised to `lowest`, (u, 1, n). A row whose denominator is below the smallest normal number gets
    zeros.
    """
    denominator = totals[..., -1] if lowest is None else torch.maximum(totals[..., -1], lowest)
    inverse = denominator.masked_fill(vanishing(denominator), math.inf).reciprocal()
    return torch.mul(totals[..., :-1], inverse[..., None], out=out), denominator


def vanishing(denominator: torch.Tensor) -> torch.Tensor:
    """Which denominators are too small to divide by; NaN is not."""
    return denominator < torch.finfo(denominator.dtype).tiny
