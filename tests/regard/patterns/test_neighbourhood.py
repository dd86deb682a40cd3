"""Windows on grids, against the formula written cell by cell."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError

Cell = tuple[int, ...]


def cells_around(cell: Cell, shape: Cell, window: Cell, causal: bool) -> set[Cell]:
    """The cells in the window of a cell, found on each axis by sliding a window along it until it fits."""
    by_axis = []
    for axis, (place, size, width) in enumerate(zip(cell, shape, window, strict=True)):
        if causal and axis == 0:
            by_axis.append(range(max(0, place - width + 1), place + 1))
            continue
        first = place - width // 2
        while first < 0:
            first += 1
        while first + width > size:
            first -= 1
        by_axis.append(range(first, first + width))
    return set(product(*by_axis))


def _mask(positions, shape, window, causal: bool, offset: int) -> np.ndarray:
    cells = dict(enumerate(product(*map(range, shape)), offset))
    window = (window,) * len(shape) if isinstance(window, int) else window
    around = {
        position: cells_around(cell, shape, window, causal) for position, cell in cells.items()
    }

    def is_allowed(i: int, j: int) -> bool:
        return i in cells and cells.get(j) in around[i]

    i, j = np.broadcast_arrays(positions.i, positions.j)
    return np.vectorize(is_allowed, otypes=[bool])(i, j)


def _draw(draw, length: int):
    columns = tuple(draw.randint(1, 4) for _ in range(draw.choice((1, 2))))
    offset = draw.choice((0, 0, 3))
    rows = -(-max(length + 2 - offset, 1) // prod(columns))  # so that every position has a cell
    shape = (rows, *columns)
    window = tuple(draw.randint(1, size) for size in shape)
    return shape, window, draw.random() < 0.4, offset


FORMULA = {"draw": _draw, "mask": _mask, "build": p.Neighbourhood}


@pytest.mark.parametrize(
    "pattern", [p.Neighbourhood((5, 6, 7), (2, 3, 5), causal=True), p.Neighbourhood((9, 4), 3)]
)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_reach_is_the_farthest_key_of_a_stack(pattern, layers):
    cells = prod(pattern.shape)
    one_layer = pattern.dense(cells, cells).double()
    queries, keys = torch.linalg.matrix_power(one_layer, layers).nonzero().unbind(1)
    ahead = (keys - queries).max().item()
    back = (queries - keys).max().item()
    reach = pattern.reach(layers)
    assert reach.back >= back
    assert reach.ahead >= ahead
    assert layers > 1 or (reach.back, reach.ahead) == (back, ahead)


def test_an_offset_moves_the_image_behind_a_token_that_sees_all_and_is_seen_by_all():
    image = p.Neighbourhood((4, 5), 3)
    moved = p.Neighbourhood((4, 5), 3, offset=1)
    dense = (moved | p.GlobalTokens([0])).dense(21, 21)
    assert dense[0].all()
    assert dense[:, 0].all()
    assert torch.equal(dense[1:, 1:], image.dense(20, 20))
    assert str(image.moved((1,))) == str(moved) == "neighbourhood((4, 5), (3, 3), offset=1)"


@pytest.mark.parametrize(
    ("shape", "window"),
    [((8,), 3), (8, 3), ((8, 8), 9), ((8, 8), (3, 3, 3)), ((8, 0), 1), ((8, 8), 0), ((8, 8), 1.5)],
)
def test_wrong_grids_and_windows_are_refused(shape, window):
    with pytest.raises(ArgumentError):
        p.Neighbourhood(shape, window)


def test_more_keys_than_cells_are_refused():
    q = torch.randn(1, 1, 65, 4)
    with pytest.raises(ShapeError, match="ends at position 64 and the call has 65 keys"):
        rg.attention(q, q, q, pattern=p.Neighbourhood((8, 8), 3))
