"""Positions that see everyone and are seen by everyone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from regard.patterns.arguments import positions, runs, words
from regard.patterns.base import Pattern
from regard.patterns.position_sets import KeySet, QuerySet


@dataclass(frozen=True)
class GlobalTokens(Pattern):
    """A pair is allowed if the position of its query or of its key is one of `indices`.

    Args:
        indices: positions 0 and up, in any order: a list, a range, a tensor of numbers.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> GlobalTokens([0]).dense(3, 3).int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    >>> str(GlobalTokens([0, *range(8, 64)]))
    'global_tokens(0, 8..63)'
    """

    indices: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", positions("GlobalTokens", self.indices))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return self._parts.allows(q_pos, k_pos)

    def structure(self) -> Pattern:
        return self._parts

    @cached_property
    def _parts(self) -> Pattern:
        chosen = runs(self.indices)
        return QuerySet(chosen) | KeySet(chosen)

    def __str__(self) -> str:
        return f"global_tokens({words(runs(self.indices))})"
