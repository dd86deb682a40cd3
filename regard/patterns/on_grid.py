"""Patterns on grids of cells: the window of a cell, as ranges of positions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, reduce
from itertools import chain, product
from math import prod
from typing import Any, Self

import torch

from regard.arguments import is_whole, number_in, shown, whole
from regard.errors import ArgumentError, ShapeError
from regard.patterns.base import Origins, Pattern
from regard.patterns.ranges import Segments, common, everything, hull, shifted, union

# Lines of the grid whose windows are listed for one row block. Of more lines only the hull of their keys is given.
MOST_LINES = 256


class OnGrid(Pattern, enrol=False):
    """A pattern in which a query may look at a key if, on each axis of a grid, the key is in a window of the query.

    Positions are numbered along the last axis first, from `offset` on. A class defines `allows` and `_window`.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...] | int
    offset: int

    def _window(self, axis: int, cell: int) -> range:
        """The cells of an axis that a query at this cell of the axis may look at; both ends grow with the cell."""
        raise NotImplementedError(f"{type(self).__name__} does not define its windows")

    def _moved_to(self, offset: int) -> Self:
        """The same on a grid whose first cell has this position."""
        raise NotImplementedError(f"{type(self).__name__} does not define how it is moved")

    def coordinates(self, positions: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Whether positions lie on the grid, and the cell of each on every axis."""
        cells = prod(self.shape)
        numbers = positions - self.offset
        stride = cells
        coordinates = []
        for size in self.shape:
            stride //= size
            coordinates.append(numbers // stride % size)
        return (numbers >= 0) & (numbers < cells), coordinates

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
        lines: Iterable[int] = map(self._number, product(*reversed(windows)))
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

    def window_on(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The cells of the window on each axis, if the grid has this shape; else None."""
        assert isinstance(self.window, tuple)
        return self.window if self.shape == shape else None

    def _moved(self, origins: Origins) -> Pattern | None:
        if isinstance(origins, torch.Tensor) or len(set(origins)) > 1:
            return None
        return self._moved_to(self.offset + origins[0])

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


def checked_shape(name: str, sizes: Any) -> tuple[int, ...]:
    """Two or three sizes of 1 or more."""
    if not isinstance(sizes, tuple | list | torch.Size) or len(sizes) not in (2, 3):
        raise ArgumentError(
            f"{name} is {shown(sizes)}; it needs two numbers, (height, width), or three with time first"
        )
    return tuple(whole(name, size, 1) for size in sizes)


def by_axis(sizes: Any, axes: int) -> Any:
    """One number as that of every axis; anything else as it is."""
    number = number_in(sizes)
    return (number,) * axes if is_whole(number) else number
