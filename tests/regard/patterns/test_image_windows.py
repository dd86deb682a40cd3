"""Windows that divide an image, against the way in which Swin makes them: roll, divide, and mask opposite edges."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from regard import patterns as p
from regard.errors import ArgumentError, ShapeError

Cell = tuple[int, ...]


def swin_windows(shape: Cell, window: Cell, shift: Cell) -> dict[Cell, tuple[Cell, Cell]]:
    """For each cell the number of its window in the rolled image, and of its region there.

    As in Swin's code: the image is padded to whole windows and rolled by -shift. On each axis the region counts which
    of the slices (0, -window), (-window, -shift) and (-shift, end) of the rolled axis a cell is in.
    """
    labels = {}
    for cell in product(*map(range, shape)):
        numbers = []
        regions = []
        for place, size, width, moved in zip(cell, shape, window, shift, strict=True):
            padded = -(-size // width) * width + (width if moved else 0)
            rolled = (place - moved) % padded
            numbers.append(rolled // width)
            regions.append((rolled >= padded - width) + (rolled >= padded - moved))
        labels[cell] = tuple(numbers), tuple(regions)
    return labels


def _mask(positions, shape, window, shift, offset: int) -> np.ndarray:
    labels = dict(enumerate(swin_windows(shape, window, shift).values(), offset))

    def is_allowed(i: int, j: int) -> bool:
        return i in labels and labels[i] == labels.get(j)

    i, j = np.broadcast_arrays(positions.i, positions.j)
    return np.vectorize(is_allowed, otypes=[bool])(i, j)


def _draw(draw, length: int):
    columns = tuple(draw.randint(1, 5) for _ in range(draw.choice((1, 2))))
    offset = draw.choice((0, 0, 3))
    rows = -(-max(length + 2 - offset, 1) // prod(columns))  # so that every position has a cell
    shape = (rows, *columns)
    window = tuple(draw.randint(1, size + 1) for size in shape)
    shift = tuple(draw.randrange(size) for size in window)
    return shape, window, shift, offset


FORMULA = {"draw": _draw, "mask": _mask, "build": p.ImageWindows}


@pytest.mark.parametrize(
    "pattern",
    [p.ImageWindows((5, 6, 7), (2, 3, 5), shift=(1, 0, 2)), p.ImageWindows((9, 4), 3, shift=1)],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_stack_reaches_no_farther_than_one_layer(pattern, layers):
    cells = prod(pattern.shape)
    stacked = torch.linalg.matrix_power(pattern.dense(cells, cells).double(), layers)
    queries, keys = stacked.nonzero().unbind(1)
    reach = pattern.reach(layers)
    farthest = (keys - queries).max().item()
    assert (reach.back, reach.ahead) == (farthest, farthest)


@pytest.mark.parametrize("size", [7, 14, 23, 56])
@pytest.mark.parametrize("shift", [0, 3])
def test_whole_windows_and_those_at_the_edges_cover_each_cell_once(size, shift):
    grid = p.ImageWindows((size, 7), 7, shift=(shift, 0)).divided_grid()
    rows, columns = grid.axes
    assert columns == ((0, 1, 7),)
    covered = []
    for group in rows:
        covered += range(group.first, group.first + group.count * group.size)
    assert covered == list(range(size))
    assert len(rows) <= 3
    assert {group.size for group in rows} == (
        {7} if size % 7 == shift == 0 else {7, *_ends(size, shift)}
    ) - (set() if size - shift >= 7 else {7})


def _ends(size: int, shift: int) -> set[int]:
    """The sizes of smaller windows at both ends of an axis."""
    return {shift, (size - shift) % 7} - {0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (((6, 7), (2, 3, 4)), "needs one number for each axis"),
        (((6, 7), 3, 3), "a shift is 0 to window - 1"),
        (((6, 7), 3, (1,)), "needs one number for each axis"),
        (((6,), 3), "two numbers"),
        (((6, 7), 0), "1"),
        (((6, 7), 3, "1"), "shift"),
    ],
)
def test_windows_that_fit_no_grid_are_refused(arguments, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        p.ImageWindows(*arguments)


def test_more_keys_than_the_grid_has_are_refused():
    with pytest.raises(ShapeError, match="ends at position 42 and the call has 43 keys"):
        p.ImageWindows((6, 7), 3).check(1, 1, 43, 43)
