"""A different pattern for each query head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, ShapeError
from regard.patterns.base import AnyOf, Pattern, shallow, truth_of
from regard.patterns.grid import Grid, common_shape
from regard.patterns.ranges import Segments, over_rows
from regard.patterns.registry import Reader


@dataclass(frozen=True)
class PerHead(AnyOf):
    """Query head h has the h-th pattern.

    Args:
        patterns: as many as the call has query heads.

    >>> from regard.patterns import CausalWindow, Causal
    >>> PerHead([CausalWindow(1), Causal()]).dense(2, 2).int().tolist()
    [[[[1, 0], [0, 1]], [[1, 0], [1, 1]]]]
    """

    patterns: Iterable[Pattern]

    varies_by_head = True

    def __post_init__(self) -> None:
        patterns: tuple[Any, ...] = ()
        if isinstance(self.patterns, Iterable) and not isinstance(self.patterns, str):
            patterns = tuple(self.patterns)
        others = [part for part in patterns if not isinstance(part, Pattern)]
        if not patterns or others:
            wrong = others[0] if others else self.patterns
            raise ArgumentError(
                f"PerHead needs patterns, one for each query head, such as PerHead([Causal(), Full()]); "
                f"it was given {wrong!r}"
            )
        object.__setattr__(self, "patterns", patterns)
        shallow(self)

    @property
    def parts(self) -> tuple[Pattern, ...]:
        assert isinstance(self.patterns, tuple)
        return self.patterns

    @classmethod
    def read(cls, reader: Reader) -> PerHead:
        return cls(reader.listed(reader.item))

    def made_of(self) -> tuple[Pattern, ...]:
        return self.parts

    @property
    def heads(self) -> int:
        return len(self.parts)

    @property
    def period(self) -> int | None:
        return None  # heads have periods of their own

    @property
    def key_period(self) -> int | None:
        return None

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        return PerHead(change(part) for part in self.parts)

    def for_head(self, head: int) -> Pattern:
        return self.by_head[head]

    def of_heads(self, heads: range, of: int) -> Pattern:
        self._check_heads(of)
        return PerHead([self.parts[head] for head in heads])

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if heads:
            self._check_heads(heads)
        super().check(batch, heads, q_len, k_len)

    def _check_heads(self, heads: int) -> None:
        if len(self.parts) != heads:
            raise ShapeError(
                f"PerHead has {count_of(len(self.parts), 'patterns')} but the call has {count_of(heads, 'query heads')}"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return self._joined([truth_of(part, q_pos, k_pos) for part in self.by_head])

    def evaluate(self, grid: Grid) -> torch.Tensor:
        return self._joined([part.evaluate(grid) for part in self.by_head])

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """The keys that are certain for all heads, and those possible for any."""
        return over_rows(part.segments(first, last, k_len) for part in self.parts)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        return all(part.sees_all(first, last, keys) for part in self.parts)

    @cached_property
    def by_head(self) -> tuple[Pattern, ...]:
        """The pattern of each head, also where a part differs by head itself."""
        return tuple(part.for_head(head) for head, part in enumerate(self.parts))

    def _joined(self, heads: list[torch.Tensor]) -> torch.Tensor:
        heads = [allowed[(None,) * (4 - allowed.dim())] for allowed in heads]
        shape = common_shape(*(allowed.shape for allowed in heads))  # (batch or 1, 1, q_len, k_len)
        return torch.cat([allowed.expand(shape) for allowed in heads], dim=1)

    def __str__(self) -> str:
        return f"per_head({', '.join(map(str, self.parts))})"
