"""The last keys of every block, which stand for all of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from regard.errors import ArgumentError
from regard.patterns.algebra import NOTHING
from regard.patterns.arguments import kept_whole
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.full import Full
from regard.patterns.part import Part, everything
from regard.patterns.ranges import Ranges, Segments, union

MOST_RUNS = 1 << 17  # beyond it, naming runs of keys costs more than it saves


@dataclass(frozen=True)
class Summary(Part):
    """Every query may see the last `last` keys of each block of `stride`: `j % stride >= stride - last`.

    >>> Summary(3, 1).dense(1, 6).int().tolist()
    [[0, 0, 1, 0, 0, 1]]
    """

    stride: int
    last: int = 1

    query_free = True
    compares_positions = False

    def __post_init__(self) -> None:
        check_summary(self, "stride", "last")

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        seen = k_pos % self.stride >= self.stride - self.last
        return seen.expand(torch.broadcast_shapes(q_pos.shape, k_pos.shape))

    def band(self) -> Band | None:
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
        seen = _last_keys(self.stride, self.last, k_len)
        return Segments(seen, seen)

    def keys(self, first: int, last: int, k_len: int) -> range:
        start = self.stride - self.last
        ends = k_len // self.stride * self.stride  # of the last whole block
        stop = k_len if k_len > ends + start else ends
        return range(start, stop) if stop > start else range(0)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        start = keys.start % self.stride
        whole = self.last == self.stride or (start >= self.stride - self.last and start + len(keys) <= self.stride)
        return not keys or whole

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        if stride % self.stride == 0:
            return Full() if residue % self.stride >= self.stride - self.last else NOTHING
        if self.stride % stride:
            return None
        inside = self.stride // stride  # positions of the lattice in one block, the last of which are seen
        seen = inside + (residue - self.stride + self.last) // stride
        if seen <= 0:
            return NOTHING
        return Full() if seen >= inside else Summary(inside, seen)

    def __str__(self) -> str:
        return f"summary({self.stride}, {self.last})"


@lru_cache(maxsize=16)
def _last_keys(stride: int, count: int, k_len: int) -> Ranges:
    ends = range(stride, k_len + stride, stride)
    return union(range(end - count, min(end, k_len)) for end in ends)


def check_summary(declared: object, stride_field: str, count_field: str) -> None:
    name = type(declared).__name__
    stride = kept_whole(declared, stride_field, f"{name}'s stride", 1)
    count = kept_whole(declared, count_field, f"{name}'s number of summary keys", 1)
    if count > stride:
        raise ArgumentError(f"{name} of blocks of {stride} with the last {count} keys; a block has {stride} of them")
