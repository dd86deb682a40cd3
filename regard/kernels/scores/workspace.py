"""Memory that is used again and again."""

from __future__ import annotations

import math

import torch


class Workspace:
    """Memory that is used for one block after the other."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._views: dict[tuple[int, ...], torch.Tensor] = {}

    def shaped(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Its beginning, in this shape."""
        view = self._views.get(shape)
        if view is None:
            view = self._views[shape] = self._memory[: math.prod(shape)].view(shape)
        return view
