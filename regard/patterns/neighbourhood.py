"""Windows on grids: images, whose positions lie row after row, and videos, frame after frame."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, product
from math import prod
from typing import Any

import torch

from regard.arguments import check_fields, is_whole, number_in, shown, whole, yes_or_no
from regard.errors import ArgumentError, ShapeError
from regard.patterns.band import Reach
from regard.patterns.base import Origins, Pattern
from regard.patterns.ranges import Segments, common, everything, hull, shifted, union
from regard.reprs import brief

MOST_LINES = 256  # lines of the grid whose windows are listed for one row block; with more, only their hull is given


@brief
@dataclass(frozen=True)
class Neighbourhood(Pattern):
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

    shape: tuple[int, ...]
    window: tuple[int, ...] | int
    causal: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        check_fields(self, shape=_sizes, causal=yes_or_no, offset=whole)
        window = number_in(self.window)
        if is_whole(window):
            window = (window,) * len(self.shape)
        window = _sizes("Neighbourhood's window", window)
        object.__setattr__(self, "window", window)
        fits = len(window) == len(self.shape) and all(map(operator.le, window, self.shape))
        if not fits:
            raise ArgumentError(
                f"Neighbourhood's window is {window} on a grid {self.shape}; it needs one number for each axis, "
                f"at most the cells of the axis"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        cells = prod(self.shape)
        q = q_pos - self.offset
        k = k_pos - self.offset
        stride = cells
        allowed = (q >= 0) & (q < cells) & (k >= 0) & (k < cells)
        for axis, (size, window) in enumerate(self._axes):
            stride //= size
            query = q // stride % size
            key = k // stride % size
            if self.causal and axis == 0:
                first = query - (window - 1)
                last = query
            else:
                first = (query - window // 2).clamp(0, size - window)
                last = first + (window - 1)
            allowed = allowed & (key >= first) & (key <= last)
        return allowed

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        low = max(first - self.offset, 0)
        high = min(last - self.offset, prod(self.shape) - 1)
        if high < low:
            return Segments((), ())
        width = self.shape[-1]
        inside = everything(k_len)
        lines = range(low // width, high // width + 1)
        if len(lines) > MOST_LINES:
            ends = [self._line(line, *self._cells(line)) for line in (lines[0], lines[-1])]
            keys = hull(tuple(hull(end.some) for end in ends))
            return Segments((), common((keys,), inside))
        segments = []
        for line in lines:
            first_cell, last_cell = self._cells(line)
            segments.append(self._line(line, max(low, first_cell), min(high, last_cell)))
        some = common(union(chain.from_iterable(line.some for line in segments)), inside)
        if (low, high) != (first - self.offset, last - self.offset):  # the others are empty rows
            return Segments((), some)
        full = reduce(common, (line.full for line in segments))
        return Segments(common(full, inside), some)

    def _cells(self, line: int) -> tuple[int, int]:
        """The numbers of the first and the last cell of a line."""
        width = self.shape[-1]
        return line * width, line * width + width - 1

    def _line(self, line: int, first: int, last: int) -> Segments:
        """The keys of the cells first..last, numbered from the first cell, which are neighbours on one line."""
        *outer, width = self.shape
        windows = []
        for axis in reversed(range(len(outer))):
            line, cell = divmod(line, outer[axis])
            windows.append(self._window(axis, cell))
        of_first = self._window(-1, first % width)
        of_last = self._window(-1, last % width)
        full = range(of_last.start, of_first.stop)
        some = range(of_first.start, of_last.stop)
        lines = map(self._number, product(*reversed(windows)))
        starts = [self.offset + width * number for number in lines]
        return Segments(
            union(shifted(full, start) for start in starts),
            union(shifted(some, start) for start in starts),
        )

    def _number(self, places: tuple[int, ...]) -> int:
        """The number of a line, given its place on every axis but the last."""
        number = 0
        for size, place in zip(self.shape[:-1], places, strict=True):
            number = number * size + place
        return number

    def _window(self, axis: int, cell: int) -> range:
        """The cells of an axis in the window of a cell."""
        size, window = self._axes[axis]
        if self.causal and axis == 0:
            return range(max(0, cell - window + 1), cell + 1)
        first = min(max(cell - window // 2, 0), size - window)
        return range(first, first + window)

    def window_on(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The cells of the window on each axis, if the grid has this shape; else None."""
        assert isinstance(self.window, tuple)
        return self.window if self.shape == shape else None

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

    def _moved(self, origins: Origins) -> Pattern | None:
        if isinstance(origins, torch.Tensor) or len(set(origins)) > 1:
            return None
        return Neighbourhood(self.shape, self.window, self.causal, self.offset + origins[0])

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        end = self.offset + prod(self.shape)
        if k_len > end:
            raise ShapeError(
                f"{self} ends at position {end} and the call has {k_len} keys; give the shape of the whole grid, and "
                f"offset= where other tokens come first"
            )

    @cached_property
    def _axes(self) -> tuple[tuple[int, int], ...]:
        """The cells and the window of each axis."""
        assert isinstance(self.window, tuple)
        return tuple(zip(self.shape, self.window, strict=True))


def _sizes(name: str, sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, tuple | list | torch.Size) or len(sizes) not in (2, 3):
        raise ArgumentError(
            f"{name} is {shown(sizes)}; it needs two numbers, (height, width), or three with time first"
        )
    return tuple(whole(name, size, 1) for size in sizes)
