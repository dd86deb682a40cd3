"""Windows around each cell of a grid: images, whose positions lie row after row, and videos, frame after frame."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod

import torch

from regard.arguments import check_fields, whole, yes_or_no
from regard.errors import ArgumentError
from regard.patterns.band import Reach
from regard.patterns.on_grid import OnGrid, by_axis, checked_shape
from regard.reprs import brief


@brief
@dataclass(frozen=True)
class Neighbourhood(OnGrid):
    """A query may look at the keys of a window around it on a grid; use it for images and videos.

    Positions are numbered along the last axis first: on a grid (height, width) the cell (y, x) has position
    `offset + y · width + x`. A key is allowed if it is in the window on every axis. On an axis of n cells a window of
    w cells around i has the cells `first <= j < first + w` with `first = min(max(i - w // 2, 0), n - w)`: at an edge it
    is shifted, so that every query has equally many keys. On a causal axis it is `0 <= i - j < w`, and cut at the edge.

    Args:
        shape: the cells of each axis: (height, width), or (time, height, width).
        window: cells of the window on each axis, or one number for all; at most the cells of the axis.
        causal: the first axis, time, is causal.
        offset: the position of the first cell, above 0 if tokens of another kind come first. Positions outside of the
            grid have empty rows and hidden keys; `| GlobalTokens([0])` lets the first token see all and be seen by all.

    Source: Neighborhood Attention Transformer, Hassani et al. 2023, section 3.1; windows at edges, of even sizes and on
    causal axes are those of its library NATTEN.

    >>> Neighbourhood((3, 4), 3).dense(12, 12)[0].view(3, 4).int().tolist()  # of the cell (0, 0)
    [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]
    >>> print(Neighbourhood((8, 32, 32), (4, 7, 7), causal=True))
    neighbourhood((8, 32, 32), (4, 7, 7), causal=true)
    """

    shape: tuple[int, ...]  # ty: ignore[incompatible-attribute-override]
    window: tuple[int, ...] | int  # ty: ignore[incompatible-attribute-override]
    causal: bool = False
    offset: int = 0  # ty: ignore[incompatible-attribute-override]

    def __post_init__(self) -> None:
        check_fields(self, shape=checked_shape, causal=yes_or_no, offset=whole)
        window = checked_shape("Neighbourhood's window", by_axis(self.window, len(self.shape)))
        object.__setattr__(self, "window", window)
        fits = len(window) == len(self.shape) and all(map(operator.le, window, self.shape))
        if not fits:
            raise ArgumentError(
                f"Neighbourhood's window is {window} on a grid {self.shape}; it needs one number for each axis, "
                f"at most the cells of the axis"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        query_inside, queries = self.coordinates(q_pos)
        key_inside, keys = self.coordinates(k_pos)
        allowed = query_inside & key_inside
        for axis, (size, window) in enumerate(self._axes):
            query = queries[axis]
            key = keys[axis]
            if self.causal and axis == 0:
                first = query - (window - 1)
                last = query
            else:
                first = (query - window // 2).clamp(0, size - window)
                last = first + (window - 1)
            allowed = allowed & (key >= first) & (key <= last)
        return allowed

    def _window(self, axis: int, cell: int) -> range:
        """The cells of an axis in the window of a cell."""
        size, window = self._axes[axis]
        if self.causal and axis == 0:
            return range(max(0, cell - window + 1), cell + 1)
        first = min(max(cell - window // 2, 0), size - window)
        return range(first, first + window)

    def reach(self, layers: int = 1) -> Reach:
        layers = whole("layers", layers, 1)
        stride = prod(self.shape)
        back = 0
        ahead = 0
        for axis, (size, window) in enumerate(self._axes):
            stride //= size
            far = stride * min(layers * (window - 1), size - 1)
            back += far
            if not (self.causal and axis == 0):
                ahead += far
        return Reach(back, ahead)

    def _moved_to(self, offset: int) -> Neighbourhood:
        return Neighbourhood(self.shape, self.window, self.causal, offset)
