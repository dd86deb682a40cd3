"""Patterns of every n-th key: lattices, strided patterns, windows with gaps; keys that each stand for some tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from regard.arguments import check_fields, whole, yes_or_no
from regard.patterns.algebra import Full
from regard.patterns.arguments import at_least_one
from regard.patterns.band import Band, Reach
from regard.patterns.bands import Diagonals
from regard.patterns.base import Pattern
from regard.patterns.ranges import Ranges, Segments, everything, union

MOST_RUNS = 64  # with more, listing the runs of keys costs more than it saves


@dataclass(frozen=True)
class Lattice(Pattern):
    """A query may look at the keys at distances divisible by `stride`: `(i - j) % stride == 0`.

    >>> Lattice(2).dense(3, 3).int().tolist()
    [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    """

    stride: int

    def __post_init__(self) -> None:
        check_fields(self, stride=at_least_one)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (q_pos - k_pos) % self.stride == 0

    def form(self) -> Band | None:
        return Band() if self.stride == 1 else None

    @property
    def period(self) -> int:
        return 1

    @property
    def key_period(self) -> int:
        return self.stride

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """Neighbouring queries have one run of keys in each stride; all of it is allowed for a single query."""
        length = last - first + 1
        if length >= self.stride or k_len > MOST_RUNS * self.stride:
            keys = (range(k_len),) if k_len > 0 else ()
            return Segments(keys if self.stride == 1 else (), keys)

        low = first % self.stride - self.stride
        runs = []
        for start in range(low, k_len, self.stride):
            runs.append(range(max(0, start), min(k_len, start + length)))
        some = union(runs)
        return Segments(some if length == 1 else (), some)

    def lattice_ends(self) -> set[int]:
        return set()

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        inner_stride = self.stride // gcd(self.stride, stride)
        return Full() if inner_stride == 1 else Lattice(inner_stride)


@dataclass(frozen=True)
class Strided(Pattern):
    """A query may look at keys nearer than `stride`, and at those at distances divisible by it.

    `|i - j| < stride` or `(i - j) % stride == 0`. With `& Causal()` it is the paper's pattern; its two parts, for
    two heads, are `CausalWindow(stride)` and `Strided(stride, local=False) & Causal()` in a `PerHead`.

    Args:
        stride: positions between the keys of the second part.
        local: False for the second part only.

    Source: Sparse Transformer, Child et al. 2019, section 4.3.

    >>> Strided(2, local=False).dense(1, 5).int().tolist()
    [[1, 0, 1, 0, 1]]
    """

    stride: int
    local: bool = True

    def __post_init__(self) -> None:
        check_fields(self, stride=at_least_one, local=yes_or_no)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs()
        far = distance % self.stride == 0
        return far | (distance < self.stride) if self.local else far

    def form(self) -> Band | Pattern:
        if self.stride == 1:
            return Band()
        far = Lattice(self.stride)
        if not self.local:
            return far
        return Diagonals(self.stride - 1, self.stride - 1) | far


@dataclass(frozen=True)
class DilatedWindow(Pattern):
    """A query may look at its own key and at `size // 2` on each side, `dilation` positions apart.

    `(i - j) % dilation == 0` and `|i - j| <= dilation · (size // 2)`.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> DilatedWindow(2, dilation=3).dense(1, 7, q_start=3).int().tolist()
    [[1, 0, 0, 1, 0, 0, 1]]
    """

    size: int
    dilation: int

    def __post_init__(self) -> None:
        check_fields(self, size=at_least_one, dilation=at_least_one)
        whole("DilatedWindow's span", self.span)  # the product may need more than 64 bits

    @property
    def span(self) -> int:
        """Distance to the farthest key on each side."""
        return self.dilation * (self.size // 2)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = (q_pos - k_pos).abs()
        return (distance % self.dilation == 0) & (distance <= self.span)

    def form(self) -> Band | Pattern:
        if self.dilation == 1 or self.span == 0:
            return Band(left=self.span, right=self.span)
        return Lattice(self.dilation) & Diagonals(self.span, self.span)


@dataclass(frozen=True)
class Compressed(Pattern):
    """A query may look at the compressed keys whose tokens are all at or before it: `stride · j + length <= i + 1`.

    Key j stands for the tokens `stride · j <= t < stride · j + length`, and the query i has the position of a token.

    Args:
        length: tokens of a compressed key.
        stride: tokens from the first one of a compressed key to the first one of the next.

    Source: the compressed branch of Native Sparse Attention, Yuan et al. 2025, section 3.3.1.

    >>> Compressed(length=2, stride=2).dense(5, 2, q_start=0).int().tolist()
    [[0, 0], [1, 0], [1, 0], [1, 1], [1, 1]]
    """

    length: int
    stride: int

    def __post_init__(self) -> None:
        check_fields(self, length=at_least_one, stride=at_least_one)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return k_pos * self.stride + self.length <= q_pos + 1

    def form(self) -> Band | None:
        return Band(right=1 - self.length) if self.stride == 1 else None

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        return Segments(self._keys_up_to(first, k_len), self._keys_up_to(last, k_len))

    def _keys_up_to(self, token: int, k_len: int) -> Ranges:
        """The compressed keys whose last token is at or before this one."""
        count = (token + 1 - self.length) // self.stride + 1
        return everything(min(k_len, count))

    def reach(self, layers: int = 1) -> Reach:
        whole("layers", layers, 1)
        return Reach(None, 0)
