"""A rule of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns.base import Pattern

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Where(Pattern):
    """A query may see a key where `function(q_pos, k_pos)` is True; equal if the function is the same object.

    Args:
        function: takes broadcastable integer tensors of positions, answers with booleans of the broadcast shape.

    >>> Where(lambda q_pos, k_pos: (q_pos + k_pos) % 2 == 0).dense(2, 2).int().tolist()
    [[1, 0], [0, 1]]
    """

    function: Rule

    by_value = False
    structured = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ArgumentError(f"Where needs a function of (q_pos, k_pos) and was given {self.function!r}")

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        allowed = self.function(q_pos, k_pos)
        if not isinstance(allowed, torch.Tensor) or allowed.dtype != torch.bool:
            found = allowed.dtype if isinstance(allowed, torch.Tensor) else type(allowed).__name__
            raise ArgumentError(f"the function in {self} answered with {found}; it needs a boolean tensor")
        wanted = torch.broadcast_shapes(q_pos.shape, k_pos.shape)
        try:
            return allowed.expand(torch.broadcast_shapes(allowed.shape, wanted))
        except RuntimeError:
            raise ShapeError(
                f"the function in {self} answered with shape {tuple(allowed.shape)} for positions of {tuple(wanted)}"
            ) from None

    def __str__(self) -> str:
        return f"where({getattr(self.function, '__name__', 'function')})"
