"""Numbers by distance and blocks of pairs: one is the other's transpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.backends.scores.blocks import spread, summed


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])
def test_a_block_holds_the_number_of_its_distance(rows, keys):
    numbers = torch.randn(2, rows + keys + 4)
    block = spread(numbers, rows, keys)
    for i in range(rows):
        for j in range(keys):
            assert torch.equal(block[:, i, j], numbers[:, rows - 1 - i + j])


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (5, 1), (3, 7), (7, 3)])
def test_sums_of_diagonals_are_those_of_numpy(rows, keys):
    block = torch.randn(2, rows, keys, dtype=torch.float64)
    expected = [[np.trace(one.numpy(), offset=at) for at in range(1 - rows, keys)] for one in block]
    np.testing.assert_allclose(summed(block).numpy(), expected, rtol=0, atol=1e-13)
