"""Where a piece of work finds its queries and keys, and how it puts back what came out.

Tensors arrive as one row of key/value heads: what belongs to queries as (rows of heads, group, q_len, ...), what
belongs to keys as (rows of heads, keys, ...). Each place shows some of them to a fused call, in place where strides
allow it, as (rows of heads, pieces, queries of a piece, ...) and (rows of heads, pieces, keys of a piece, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch


class Place(Protocol):
    """Pieces of equal size that share one mask, or bring one each."""

    def rows(self, x: torch.Tensor) -> torch.Tensor: ...
    def put(self, x: torch.Tensor, piece: torch.Tensor) -> None: ...
    def keys(self, x: torch.Tensor) -> torch.Tensor: ...
    def add_keys(self, x: torch.Tensor, piece: torch.Tensor) -> None: ...
    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor: ...


@dataclass(frozen=True)
class Block:
    """One run of rows over one run of keys; the heads of a group stand side by side."""

    at: range
    seen: range

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.at.start : self.at.stop]

    def put(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        self.rows(x).copy_(piece)

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, None, self.seen.start : self.seen.stop]

    def add_keys(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        x[:, self.seen.start : self.seen.stop] += piece[:, 0]

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        """(…, 1, rows, keys) or (heads, group, 1, rows, keys) as the call takes it."""
        return mask[:, :, 0]


@dataclass(frozen=True)
class Windows:
    """Runs of rows, one behind the other, each over keys that begin `rows` further on: overlapping views, no copy."""

    first: int
    size: int
    count: int
    first_key: int
    width: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._parts(x).transpose(1, 2)  # (rows of heads, pieces, group, rows, ...)
        return parts.flatten(2, 3)

    def put(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        self._parts(x).copy_(piece.unflatten(2, (x.shape[1], self.size)).transpose(1, 2))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return self._windows(x, 0, self.width)

    def add_keys(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        for at in range(0, self.width, self.size):  # slices no wider than a step, so that none meets its neighbour
            width = min(self.size, self.width - at)
            self._windows(x, at, width).add_(piece[:, :, at : at + width])

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        return _beside(mask, group)

    def cut(self, most: int) -> Iterator[Windows]:
        """The same work, at most so many pieces at once."""
        for at in range(0, self.count, most):
            yield replace(
                self,
                first=self.first + at * self.size,
                first_key=self.first_key + at * self.size,
                count=min(most, self.count - at),
            )

    def _parts(self, x: torch.Tensor) -> torch.Tensor:
        whole = x[:, :, self.first : self.first + self.count * self.size]
        return whole.unflatten(2, (self.count, self.size))  # (rows of heads, group, pieces, rows, ...)

    def _windows(self, x: torch.Tensor, at: int, width: int) -> torch.Tensor:
        step = x.stride(1)
        start = x.storage_offset() + (self.first_key + at) * step
        return x.as_strided(
            (x.shape[0], self.count, width, x.shape[2]), (x.stride(0), self.size * step, step, x.stride(2)), start
        )


@dataclass(frozen=True, eq=False)
class Gathered:
    """Runs of rows with keys from several runs: row_index (pieces, rows) and key_index (pieces, keys)."""

    row_index: torch.Tensor
    key_index: torch.Tensor

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        picked = x.index_select(2, self.row_index.flatten()).unflatten(2, self.row_index.shape)
        return picked.transpose(1, 2).flatten(2, 3)  # (rows of heads, pieces, group · rows, ...)

    def put(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        parts = piece.unflatten(2, (x.shape[1], self.row_index.shape[1])).transpose(1, 2)
        x.index_copy_(2, self.row_index.flatten(), parts.flatten(2, 3))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(1, self.key_index.flatten()).unflatten(1, self.key_index.shape)

    def add_keys(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        x.index_add_(1, self.key_index.flatten(), piece.flatten(1, 2))

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        return _beside(mask, group)


@dataclass(frozen=True)
class Residues:
    """Every `stride`-th row over every `stride`-th key, for `count` neighbouring residues, as views without a copy."""

    stride: int
    count: int
    member: int  # of the group of heads
    first: int
    size: int
    first_key: int
    width: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return _every(x[:, self.member], self.stride, self.count, self.first, self.size)

    def put(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        self.rows(x).copy_(piece)

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return _every(x, self.stride, self.count, self.first_key, self.width)

    def add_keys(self, x: torch.Tensor, piece: torch.Tensor) -> None:
        self.keys(x).add_(piece)

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        return mask[:, self.member if mask.shape[1] > 1 else 0]


def _every(x: torch.Tensor, stride: int, count: int, first: int, size: int) -> torch.Tensor:
    """x (rows of heads, length, ...) as (rows of heads, residues, every stride-th, ...)."""
    step = x.stride(1)
    return x.as_strided(
        (x.shape[0], count, size, *x.shape[2:]),
        (x.stride(0), step, stride * step, *x.stride()[2:]),
        x.storage_offset() + first * step,
    )


def _beside(mask: torch.Tensor, group: int) -> torch.Tensor:
    """A mask (heads or 1, group or 1, pieces or 1, rows, keys) with the rows of a group's heads below each other."""
    mask = mask.expand(mask.shape[0], group, *mask.shape[2:])
    return mask.transpose(1, 2).flatten(2, 3)  # (heads or 1, pieces or 1, group · rows, keys)
