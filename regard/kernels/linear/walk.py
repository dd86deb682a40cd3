"""Over a text, chunk by chunk: which rows are answered when, from which tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.kernels.linear.chunk import Chunk, Sums

CHUNK = 64  # positions whose pairs are weighed; measured on CPU, 64 to 128 are best
BLOCK = 1024  # positions that enter a sum, or are answered from it, at once


@dataclass(frozen=True)
class Step:
    """Keys that enter the sum, or rows that are answered from it, or as many of both, causally."""

    rows: slice
    keys: slice

    @property
    def answers(self) -> bool:
        return self.rows.stop > self.rows.start

    @property
    def adds(self) -> bool:
        return self.keys.stop > self.keys.start


@dataclass(frozen=True)
class Walk:
    """Which rows see which keys: the first one so many and one more than `before`, each next row one more, till all.

    Rows and keys are counted from the first of each.
    """

    rows: int
    keys: int
    before: int

    @property
    def both(self) -> int:
        """Rows at whose position a key stands."""
        return max(0, min(self.rows, self.keys - self.before))

    def steps(self) -> Iterator[Step]:
        """In an order in which the sum holds what a row may see when its turn comes."""
        none = slice(0, 0)
        yield from (Step(none, keys) for keys in _pieces(0, min(self.before, self.keys), BLOCK))
        for rows in _pieces(0, self.both, CHUNK):
            yield Step(rows, slice(self.before + rows.start, self.before + rows.stop))
        yield from (Step(rows, none) for rows in _pieces(self.both, self.rows, BLOCK))

    def blocks(self) -> Iterator[tuple[slice, slice, Walk]]:
        """The same walk as some that follow on each other, each with its rows and keys among all."""
        none = slice(0, 0)
        for keys in _pieces(0, min(self.before, self.keys), BLOCK):
            yield none, keys, Walk(0, keys.stop - keys.start, keys.stop - keys.start)
        for rows in _pieces(0, self.both, BLOCK):
            size = rows.stop - rows.start
            yield rows, slice(self.before + rows.start, self.before + rows.stop), Walk(size, size, 0)
        for rows in _pieces(self.both, self.rows, BLOCK):
            yield rows, none, Walk(rows.stop - rows.start, 0, 0)


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, stop)) for at in range(start, stop, size))


@dataclass(frozen=True)
class Tensors:
    """What a walk reads.

    q: (batch, kv_heads, group, rows, features). k: (batch, kv_heads, keys, features).
    v: (batch, kv_heads, keys, v_dim). k_log, decay_log: (batch, kv_heads, keys), both or neither.
    least: (batch, kv_heads, rows) in float64, what the logarithm of a denominator is at least, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_log: torch.Tensor | None = None
    decay_log: torch.Tensor | None = None
    least: torch.Tensor | None = None

    @property
    def units(self) -> tuple[int, int]:
        """batch and kv_heads: everything below has them in one axis, u."""
        return self.k.shape[0], self.k.shape[1]

    def start(self) -> Sums:
        """The sum of no keys."""
        like = self.k.new_empty(math.prod(self.units))
        return Sums.none(like, self.k.shape[-1], self.v.shape[-1], self.k_log is not None)

    def chunk(self, before: Sums, keys: slice) -> Chunk:
        """Some of the keys, with a column of ones beside their values for the denominator."""
        k, v = (x[:, :, keys].flatten(0, 1) for x in (self.k, self.v))
        logs = (None if x is None else x[:, :, keys].flatten(0, 1) for x in (self.k_log, self.decay_log))
        return Chunk(before, k, with_ones(v), *logs)

    def queries(self, rows: slice) -> torch.Tensor:
        """Some of the queries, (u, g, n, features)."""
        return self.q[:, :, :, rows].flatten(0, 1)

    def lowest(self, log: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
        """What the denominators of these rows are at least, (u, 1, n), divided by exp(log) of (u, n or 1)."""
        if self.least is None:
            return None
        least = self.least[:, :, rows].flatten(0, 1)
        return (least if log is None else least - log).exp()[:, None].to(self.k.dtype)


def with_ones(v: torch.Tensor) -> torch.Tensor:
    """Values (u, n, v_dim) with a column of ones: what it sums up to is the denominator."""
    return torch.cat((v, v.new_ones(*v.shape[:2], 1)), dim=-1)


def shares(
    found: torch.Tensor, lowest: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """From answers (u, g, n, v_dim + 1): sums over denominators (u, g, n, v_dim), and the denominators (u, g, n).

    Denominators are raised to `lowest`, (u, 1, n). One below the smallest normal number is none: its row gets zeros.
    """
    denominator = found[..., -1] if lowest is None else torch.maximum(found[..., -1], lowest)
    inverse = denominator.masked_fill(vanishing(denominator), math.inf).reciprocal()
    return torch.mul(found[..., :-1], inverse[..., None], out=out), denominator


def vanishing(denominator: torch.Tensor) -> torch.Tensor:
    """Which denominators are too small to divide by; NaN is not."""
    return denominator < torch.finfo(denominator.dtype).tiny
