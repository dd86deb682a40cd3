"""Windows on grids, against the formula written cell by cell."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, WastedPairsWarning


def cells_around(at: tuple[int, ...], shape, window, causal: bool) -> set[tuple[int, ...]]:
    """The cells in the window of a cell, found on each axis by sliding a window along it until it fits."""
    axes = []
    for axis, (cell, size, wide) in enumerate(zip(at, shape, window, strict=True)):
        if causal and axis == 0:
            axes.append([one for one in range(size) if cell - wide < one <= cell])
            continue
        first = cell - wide // 2
        while first < 0:
            first += 1
        while first + wide > size:
            first -= 1
        axes.append(list(range(first, first + wide)))
    return set(product(*axes))


def _mask(at, shape, window, causal: bool, offset: int) -> np.ndarray:
    places = dict(enumerate(product(*map(range, shape)), offset))
    wide = (window,) * len(shape) if isinstance(window, int) else window
    around = {number: cells_around(cell, shape, wide, causal) for number, cell in places.items()}
    allowed = np.vectorize(lambda i, j: i in places and places.get(j) in around[i], otypes=[bool])
    return allowed(*np.broadcast_arrays(at.i, at.j))


def _draw(r, n: int):
    shape = tuple(r.randint(1, 4) for _ in range(r.choice((1, 2))))
    offset = r.choice((0, 0, 3))
    # as many cells as the call has positions
    shape = (
        -(-max(n + 2 - offset, 1) // prod(shape)),
        *shape,
    )
    window = tuple(r.randint(1, size) for size in shape)
    return shape, window, r.random() < 0.4, offset


FORMULA = {"draw": _draw, "mask": _mask, "build": p.Neighbourhood}


def test_every_query_of_an_image_sees_a_whole_window():
    pattern = p.Neighbourhood((6, 9), (3, 4))
    assert pattern.dense(54, 54).sum(-1).unique().tolist() == [12]
    assert pattern.dense(2, 54, q_start=54).sum() == 0  # outside of the grid


@pytest.mark.parametrize(
    "pattern", [p.Neighbourhood((5, 6, 7), (2, 3, 5), causal=True), p.Neighbourhood((9, 4), 3)]
)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_reach_is_the_farthest_key_of_a_stack(pattern, layers):
    n = prod(pattern.shape)
    near = pattern.dense(n, n).double()
    far = torch.linalg.matrix_power(near, layers).nonzero()
    ahead = (far[:, 1] - far[:, 0]).max().item()
    back = (far[:, 0] - far[:, 1]).max().item()
    reach = pattern.reach(layers)
    assert reach.back >= back
    assert reach.ahead >= ahead
    assert layers > 1 or (reach.back, reach.ahead) == (back, ahead)


def test_a_token_before_the_image_sees_all_and_is_seen_by_all():
    pattern = p.Neighbourhood((4, 5), 3, offset=1) | p.GlobalTokens([0])
    dense = pattern.dense(21, 21)
    assert dense[0].all()
    assert dense[:, 0].all()
    assert torch.equal(dense[1:, 1:], p.Neighbourhood((4, 5), 3).dense(20, 20))
    assert str(p.Neighbourhood((4, 5), 3).moved((1,))) == "neighbourhood((4, 5), (3, 3), offset=1)"


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


def test_a_function_that_hides_its_structure_is_named_in_the_plan_and_in_a_warning():
    near = p.Where(lambda i, j: (i - j).abs() < 3)
    small = torch.randn(1, 1, 64, 4)
    large = torch.randn(1, 1, 4096, 4)
    plan = str(rg.plan_attention(small, small, small, pattern=near))
    assert "keeps an estimated 7.7% of its pairs, and 100.0% are computed" in plan
    with pytest.warns(WastedPairsWarning, match="keeps an estimated 0.1%"):
        rg.plan_attention(large, large, large, pattern=near)
    most = p.Where(lambda i, j: (i - j).abs() % 3 > 0)
    assert "keeps an" not in str(rg.plan_attention(large, large, large, pattern=most))
