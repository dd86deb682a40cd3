"""Windows: a query sees its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.patterns.band import Band
from regard.patterns.base import Pattern


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """A query may see `size // 2` keys on each side and its own: `|i - j| <= size // 2`.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> SlidingWindow(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_size(self)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (q_pos - k_pos).abs() <= self.size // 2

    def band(self) -> Band:
        return Band(left=self.size // 2, right=self.size // 2)

    def __str__(self) -> str:
        return f"sliding_window({self.size})"


@dataclass(frozen=True)
class CausalWindow(Pattern):
    """A query may see `size` keys that end with its own: `0 <= i - j < size`.

    Source: Mistral 7B, Jiang et al. 2023, section 2.

    >>> CausalWindow(2).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_size(self)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (k_pos <= q_pos) & (q_pos - k_pos < self.size)

    def band(self) -> Band:
        return Band(left=self.size - 1, right=0)

    def __str__(self) -> str:
        return f"causal_window({self.size})"


def check_size(window: SlidingWindow | CausalWindow) -> None:
    name = type(window).__name__
    size = plain(f"{name}'s size", window.size)
    if not is_whole(size) or size < 1:
        raise ArgumentError(f"{name}(size={shown(size)}): size is a number of keys, 1 or more")
    object.__setattr__(window, "size", whole(f"{name}'s size", size))
