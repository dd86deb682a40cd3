"""Views select the queries and keys of a call, by strided views or gathers, and write its results back.

The first axis of all tensors is the key/value heads of all batch rows, called rows of heads. Tensors of queries are
(rows of heads, group, q_len, ...), those of keys (rows of heads, keys, ...). A view selects (rows of heads, blocks,
queries of a block, ...) and (rows of heads, blocks, keys of a block, ...), without a copy if strides allow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from regard.backends import flash


class Tensors(NamedTuple):
    """What a program reads, and what it fills: output (rows of heads, group, q_len, v_dim) and its log-sum-exp."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    output: torch.Tensor
    log_sum_exp: torch.Tensor


class View:
    """Row blocks of equal size, with one mask for all or one for each."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a method rows")

    def put(self, x: torch.Tensor, values: torch.Tensor) -> None:
        self.rows(x).copy_(values)

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a method keys")

    def add_keys(self, x: torch.Tensor, values: torch.Tensor) -> None:
        self.keys(x).add_(values)

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        """A mask (heads or 1, group or 1, blocks or 1, rows, keys) in the shape that the call takes."""
        mask = mask.expand(mask.shape[0], group, *mask.shape[2:])  # the rows of a group's heads follow each other
        return mask.transpose(1, 2).flatten(2, 3)  # (heads or 1, blocks or 1, group · rows, keys)

    def attend(self, tensors: Tensors, call: flash.Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp of the call on this view."""
        return flash.forward(self.rows(tensors.q), self.keys(tensors.k), self.keys(tensors.v), call)

    def fill(self, tensors: Tensors, call: flash.Call) -> None:
        """Compute the call on this view and write its output and log-sum-exp."""
        values, sums = self.attend(tensors, call)
        self.put(tensors.output, values)
        self.put(tensors.log_sum_exp, sums)


@dataclass(frozen=True)
class SliceView(View):
    """One run of rows over one run of keys; the heads of a group are heads of the call."""

    at: slice
    over: slice

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.at]

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, None, self.over]

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        return mask[:, :, 0]

    def fill(self, tensors: Tensors, call: flash.Call) -> None:
        q, k, v, output, log_sum_exp = tensors
        at, over = self.at, self.over
        output[:, :, at], log_sum_exp[:, :, at] = flash.forward(q[:, :, at], k[:, None, over], v[:, None, over], call)


@dataclass(frozen=True)
class WindowView(View):
    """Consecutive row blocks, each over keys that begin `size` later: overlapping views without a copy."""

    first: int
    size: int
    count: int
    first_key: int
    width: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        whole = x[:, :, self.first : self.first + self.count * self.size].unflatten(2, (self.count, self.size))
        return whole.transpose(1, 2).flatten(2, 3)  # (rows of heads, blocks, group · rows, ...)

    def put(self, x: torch.Tensor, values: torch.Tensor) -> None:
        whole = x[:, :, self.first : self.first + self.count * self.size].unflatten(2, (self.count, self.size))
        whole.copy_(values.unflatten(2, (x.shape[1], self.size)).transpose(1, 2))

    def keys(self, x: torch.Tensor, at: int = 0, width: int | None = None) -> torch.Tensor:
        """The keys of each row block; `at` and `width`: some of them."""
        heads, step, one = x.stride()
        shape = (x.shape[0], self.count, self.width if width is None else width, x.shape[2])
        strides, start = (heads, self.size * step, step, one), x.storage_offset() + (self.first_key + at) * step
        return x.as_strided(shape, strides, start)

    def add_keys(self, x: torch.Tensor, values: torch.Tensor) -> None:
        for at in range(0, self.width, self.size):  # slices no wider than a step do not overlap
            width = min(self.size, self.width - at)
            self.keys(x, at, width).add_(values[:, :, at : at + width])

    def cut(self, most: int) -> Iterator[WindowView]:
        """The same work, at most `most` row blocks at once."""
        for at in range(0, self.count, most):
            by, count = at * self.size, min(most, self.count - at)
            yield replace(self, first=self.first + by, first_key=self.first_key + by, count=count)


@dataclass(frozen=True, eq=False)
class GatherView(View):
    """Row blocks with keys from several runs: row_index (blocks, rows) and key_index (blocks, keys)."""

    row_index: torch.Tensor
    key_index: torch.Tensor

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        picked = x.index_select(2, self.row_index.flatten()).unflatten(2, self.row_index.shape)
        return picked.transpose(1, 2).flatten(2, 3)  # (rows of heads, blocks, group · rows, ...)

    def put(self, x: torch.Tensor, values: torch.Tensor) -> None:
        whole = values.unflatten(2, (x.shape[1], self.row_index.shape[1])).transpose(1, 2)
        x.index_copy_(2, self.row_index.flatten(), whole.flatten(2, 3))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(1, self.key_index.flatten()).unflatten(1, self.key_index.shape)

    def add_keys(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x.index_add_(1, self.key_index.flatten(), values.flatten(1, 2))


@dataclass(frozen=True)
class StrideView(View):
    """Every `stride`-th row over every `stride`-th key, for `count` neighbouring residues, as views without a copy."""

    stride: int
    count: int
    member: int  # of the group of heads
    first: int
    size: int
    first_key: int
    width: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return every(x[:, self.member], self.stride, self.count, self.first, self.size)

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return every(x, self.stride, self.count, self.first_key, self.width)

    def for_groups(self, mask: torch.Tensor, group: int) -> torch.Tensor:
        return mask[:, self.member if mask.shape[1] > 1 else 0]


def every(x: torch.Tensor, stride: int, count: int, first: int, size: int) -> torch.Tensor:
    """x (rows of heads, length, ...) as (rows of heads, residues, every stride-th, ...)."""
    step = x.stride(1)
    return x.as_strided(
        (x.shape[0], count, size, *x.shape[2:]),
        (x.stride(0), step, stride * step, *x.stride()[2:]),
        x.storage_offset() + first * step,
    )
