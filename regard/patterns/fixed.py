"""Patterns of blocks of positions: a query's own block, the last keys of every block, and both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from regard.arguments import check_fields, count_of, yes_or_no
from regard.errors import ArgumentError, ShapeError
from regard.patterns.algebra import NOTHING, Full
from regard.patterns.arguments import ByRow, at_least_one, number_by_row, on_rows
from regard.patterns.band import Band, Reach
from regard.patterns.bands import SlidingWindow
from regard.patterns.base import Origins, Pattern
from regard.patterns.grid import common_shape
from regard.patterns.held import TensorPattern, new_serial
from regard.patterns.ranges import Ranges, Segments, everything, union
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class SameBlock(TensorPattern):
    """A query may look at the keys of its own block of `size` positions.

    `(i - offset) // size == (j - offset) // size`; with `& Causal()` it is chunked attention.

    Args:
        size: positions in a block.
        offset: where a block begins: a number, or one for each batch row, (batch,), as left padding needs.

    >>> SameBlock(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    >>> SameBlock(2, offset=1).dense(4, 4).int().tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    """

    size: int
    offset: ByRow = 0

    def __post_init__(self) -> None:
        check_fields(self, size=at_least_one, offset=number_by_row)
        object.__setattr__(self, "offset", self.offset % self.size)
        if isinstance(self.offset, torch.Tensor):
            object.__setattr__(self, "serial", new_serial())

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return bool(self.serial)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if len(self.rows) not in (1, batch) and batch:
            raise ShapeError(
                f"SameBlock's offset holds {count_of(len(self.rows), 'numbers')} but the batch has "
                f"{count_of(batch, 'rows')}; give one for each"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        offset = on_rows(self.offset, k_pos.device)
        return (q_pos - offset) // self.size == (k_pos - offset) // self.size

    def form(self) -> Band | None:
        return Band(left=0, right=0) if self.size == 1 else None

    @property
    def period(self) -> int:
        return self.size

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        if not isinstance(self.offset, int):
            return super().segments(first, last, k_len)
        low = (first - self.offset) // self.size
        high = (last - self.offset) // self.size
        start = low * self.size + self.offset
        stop = (high + 1) * self.size + self.offset
        keys = union([range(max(0, start), max(0, min(k_len, stop)))])
        return Segments(keys if low == high else (), keys)

    def _moved(self, origins: Origins) -> Pattern | None:
        if self.serial or isinstance(origins, torch.Tensor) or len(set(origins)) > 1:
            return None
        return SameBlock(self.size, self.offset + origins[0])

    def lattice_ends(self) -> set[int] | None:
        """From the residue of the offset on, blocks begin one position later on a lattice."""
        return {self.offset} if isinstance(self.offset, int) else None

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        if stride % self.size == 0:
            return SlidingWindow(1)
        if self.size % stride or self.serial:
            return None
        assert isinstance(self.offset, int)
        return SameBlock(self.size // stride, -((residue - self.offset) // stride))

    def reach(self, layers: int = 1) -> Reach:
        return Reach(self.size - 1, self.size - 1)  # no layer leaves the block

    @cached_property
    def rows(self) -> tuple[SameBlock, ...]:
        if isinstance(self.offset, torch.Tensor):
            return tuple(SameBlock(self.size, offset) for offset in self.offset.tolist())
        return (self,)

    def numbers(self) -> tuple[Any, ...]:
        return self.size, self.offset

    def __str__(self) -> str:
        if isinstance(self.offset, torch.Tensor):
            return f"same_block({self.size}, offset=<{len(self.offset)} numbers>)"
        offset = f", offset={self.offset}" if self.offset else ""
        return f"same_block({self.size}{offset})"


MOST_RUNS = 1 << 17  # with more, listing the runs of keys costs more than it saves


@dataclass(frozen=True)
class Summary(Pattern):
    """Every query may look at the last `last` keys of each block of `stride`: `j % stride >= stride - last`.

    >>> Summary(3, 1).dense(1, 6).int().tolist()
    [[0, 0, 1, 0, 0, 1]]
    """

    stride: int
    last: int = 1

    query_free = True
    compares_positions = False

    def __post_init__(self) -> None:
        check_fields(self, stride=at_least_one, last=at_least_one)
        _check_summary("Summary", self.stride, self.last)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        allowed = k_pos % self.stride >= self.stride - self.last
        return allowed.expand(common_shape(q_pos.shape, k_pos.shape))

    def form(self) -> Band | None:
        return Band() if self.last == self.stride else None

    @property
    def period(self) -> int:
        return self.stride

    @property
    def key_period(self) -> int:
        return self.stride

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        if k_len > MOST_RUNS * self.stride:
            return Segments((), everything(k_len))
        keys = _last_keys(self.stride, self.last, k_len)
        return Segments(keys, keys)

    def key_range(self, first: int, last: int, k_len: int) -> range:
        start = self.stride - self.last
        ends = k_len // self.stride * self.stride  # of the last whole block
        stop = k_len if k_len > ends + start else ends
        return range(start, stop) if stop > start else range(0)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        if not keys or self.last == self.stride:
            return True
        start = keys.start % self.stride
        return start >= self.stride - self.last and start + len(keys) <= self.stride

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        if stride % self.stride == 0:
            is_summary = residue % self.stride >= self.stride - self.last
            return Full() if is_summary else NOTHING
        if self.stride % stride:
            return None
        inside = self.stride // stride  # positions of the lattice in one block
        allowed = inside + (residue - self.stride + self.last) // stride  # the last of them
        if allowed <= 0:
            return NOTHING
        return Full() if allowed >= inside else Summary(inside, allowed)

    def __str__(self) -> str:
        return f"summary({self.stride}, {self.last})"


@lru_cache(maxsize=16)
def _last_keys(stride: int, count: int, k_len: int) -> Ranges:
    ends = range(stride, k_len + stride, stride)
    return union(range(end - count, min(end, k_len)) for end in ends)


def _check_summary(name: str, stride: int, count: int) -> None:
    if count > stride:
        raise ArgumentError(
            f"{name} of blocks of {stride} with the last {count_of(count, 'keys')}; a block has {stride} of them"
        )


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query may look at its own block of `stride` positions, and at the last `summary` keys of every block.

    `i // stride == j // stride` or `j % stride >= stride - summary`; with `& Causal()` it is the paper's pattern.

    Args:
        stride: positions in a block.
        summary: keys at the end of each block that every query may look at, 1 to `stride`.
        local: False for the second part only.

    Source: Sparse Transformer, Child et al. 2019, section 4.3.

    >>> Fixed(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 1], [1, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    """

    stride: int
    summary: int = 1
    local: bool = True

    def __post_init__(self) -> None:
        check_fields(self, stride=at_least_one, summary=at_least_one, local=yes_or_no)
        _check_summary("Fixed", self.stride, self.summary)

    @property
    def query_free(self) -> bool:  # type: ignore[override]
        return not self.local

    @property
    def compares_positions(self) -> bool:  # type: ignore[override]
        return self.local

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        ends = k_pos % self.stride >= self.stride - self.summary
        if self.local:
            return (q_pos // self.stride == k_pos // self.stride) | ends
        return ends.expand(common_shape(q_pos.shape, k_pos.shape))

    def form(self) -> Band | Pattern:
        if self.summary == self.stride:
            return Band()
        ends = Summary(self.stride, self.summary)
        return SameBlock(self.stride) | ends if self.local else ends
