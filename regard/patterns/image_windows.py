"""Windows that divide a grid, as in Swin: images, whose positions lie row after row, and videos, frame after frame."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from regard.arguments import check_fields, whole
from regard.errors import ArgumentError
from regard.patterns.band import Reach
from regard.patterns.on_grid import OnGrid, by_axis, checked_shape
from regard.reprs import brief


class EqualWindows(NamedTuple):
    """Windows of equal size that follow one another on an axis: `count` of `size` cells each, from cell `first` on."""

    first: int
    count: int
    size: int


@dataclass(frozen=True)
class DividedGrid:
    """A grid that is divided into windows: a cell looks at all cells of its own window and at no other.

    shape: cells of each axis. axes: the windows of each axis in their order, with an entry for each run of equal sizes.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[EqualWindows, ...], ...]


@brief
@dataclass(frozen=True)
class ImageWindows(OnGrid):
    """A query may look at the keys of its own window, where windows divide a grid; use it for Swin and similar models.

    Positions are numbered along the last axis first: on a grid (height, width) the cell (y, x) has position
    `offset + y · width + x`. A key is allowed if on every axis

        (query's cell - shift) // window = (key's cell - shift) // window

    With a shift, windows at the edges are smaller. These are the pairs that Swin keeps after it has rolled an image by
    -shift, divided it into equal windows, and masked pairs of cells from opposite edges. An image whose sides are not
    multiples of the window has smaller windows at its ends. If a model pads its images instead, give the shape after
    padding, and `& KeyMask(mask)` to hide the padding.

    Args:
        shape: the cells of each axis: (height, width), or (time, height, width).
        window: cells of a window on each axis, or one number for all.
        shift: where the second window of each axis begins, 0 to window - 1, or one number for all; 0 for windows that
            begin at the first cell.
        offset: the position of the first cell, above 0 if tokens of another kind come first. Positions outside of the
            grid have empty rows and hidden keys.

    Sources: Swin Transformer, Liu et al. 2021, section 3.2; Video Swin Transformer, Liu et al. 2022, section 3.2.

    >>> ImageWindows((3, 4), 2).dense(12, 12)[0].view(3, 4).int().tolist()  # of the cell (0, 0)
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    >>> ImageWindows((3, 4), 2, shift=1).dense(12, 12)[0].view(3, 4).int().tolist()
    [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    >>> print(ImageWindows((8, 56, 56), (8, 7, 7), shift=(0, 3, 3)))
    image_windows((8, 56, 56), (8, 7, 7), shift=(0, 3, 3))
    """

    shape: tuple[int, ...]  # ty: ignore[incompatible-attribute-override]
    window: tuple[int, ...] | int  # ty: ignore[incompatible-attribute-override]
    shift: tuple[int, ...] | int = 0
    offset: int = 0  # ty: ignore[incompatible-attribute-override]

    def __post_init__(self) -> None:
        check_fields(self, shape=checked_shape, offset=whole)
        axes = len(self.shape)
        window = checked_shape("ImageWindows's window", by_axis(self.window, axes))
        shift = _checked_shift(by_axis(self.shift, axes))
        fits = len(window) == len(shift) == axes
        if not fits or any(moved >= cells for moved, cells in zip(shift, window, strict=True)):
            raise ArgumentError(
                f"ImageWindows has window {window} and shift {shift} on a grid {self.shape}; each needs one number for "
                f"each axis, and a shift is 0 to window - 1"
            )
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "shift", shift)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        query_inside, queries = self.coordinates(q_pos)
        key_inside, keys = self.coordinates(k_pos)
        allowed = query_inside & key_inside
        for axis, (_, window) in enumerate(self._axes):
            shift = self._shifts[axis]
            of_query = torch.div(queries[axis] - shift, window, rounding_mode="floor")
            of_key = torch.div(keys[axis] - shift, window, rounding_mode="floor")
            allowed = allowed & (of_query == of_key)
        return allowed

    def _window(self, axis: int, cell: int) -> range:
        """The cells of an axis that are in the window of a cell."""
        size, window = self._axes[axis]
        shift = self._shifts[axis]
        first = (cell - shift) // window * window + shift
        return range(max(0, first), min(first + window, size))

    def divided_grid(self) -> DividedGrid | None:
        if self.offset:
            return None
        return DividedGrid(self.shape, tuple(map(self._equal_windows, range(len(self.shape)))))

    def _equal_windows(self, axis: int) -> tuple[EqualWindows, ...]:
        size, _ = self._axes[axis]
        groups: list[EqualWindows] = []
        cell = 0
        while cell < size:
            width = len(self._window(axis, cell))
            if groups and groups[-1].size == width:
                groups[-1] = groups[-1]._replace(count=groups[-1].count + 1)
            else:
                groups.append(EqualWindows(cell, 1, width))
            cell += width
        return tuple(groups)

    def reach(self, layers: int = 1) -> Reach:
        whole("layers", layers, 1)  # layers with the same windows reach no farther than one
        stride = prod(self.shape)
        far = 0
        for axis, (size, _) in enumerate(self._axes):
            stride //= size
            far += stride * (max(group.size for group in self._equal_windows(axis)) - 1)
        return Reach(far, far)

    @property
    def _shifts(self) -> tuple[int, ...]:
        assert isinstance(self.shift, tuple)
        return self.shift

    def _moved_to(self, offset: int) -> ImageWindows:
        return ImageWindows(self.shape, self.window, self.shift, offset)


def _checked_shift(shift: object) -> tuple[int, ...]:
    if not isinstance(shift, tuple | list):
        raise ArgumentError(
            f"ImageWindows's shift is {shift!r}; it needs a number for each axis, or one for all"
        )
    return tuple(whole("ImageWindows's shift", cells, 0) for cells in shift)
