"""The own block, and the summaries that end every block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from regard.patterns.arguments import yes_or_no
from regard.patterns.band import Band
from regard.patterns.base import Pattern
from regard.patterns.same_block import SameBlock
from regard.patterns.summary import Summary, check_summary


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query may see its own block of `stride` positions, and the last `summary` keys of every block.

    `i // stride == j // stride` or `j % stride >= stride - summary`; with `& Causal()` it is the paper's pattern.

    Args:
        stride: positions in a block.
        summary: keys at the end of a block that everyone may see, 1 to `stride`.
        local: False for the second part alone.

    Source: Sparse Transformer, Child et al. 2019, section 4.3.

    >>> Fixed(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 1], [1, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    """

    stride: int
    summary: int = 1
    local: bool = True

    def __post_init__(self) -> None:
        check_summary(self, "stride", "summary")
        yes_or_no("Fixed's local", self.local)

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
        return ends.expand(torch.broadcast_shapes(q_pos.shape, k_pos.shape))

    def band(self) -> Band | None:
        return Band() if self.summary == self.stride else None

    def structure(self) -> Pattern:
        return self._parts

    @cached_property
    def _parts(self) -> Pattern:
        ends = Summary(self.stride, self.summary)
        return SameBlock(self.stride) | ends if self.local else ends

    def __str__(self) -> str:
        words = [str(self.stride)]
        words += [f"summary={self.summary}"] if self.summary != 1 else []
        words += [] if self.local else ["local=false"]
        return f"fixed({', '.join(words)})"
