"""Bounds of bands by query, as lists and as tensors, are those of their pattern."""

import pytest
import torch

from regard.backends.native.bands import RowBand, clamped
from regard.patterns.band import Band
from regard.patterns.bands import Diagonals


@pytest.mark.parametrize("count", [1, 4])
def test_clamped_numbers_are_those_of_a_clamp(count):
    for first in range(-5, 9):
        for low in range(4):
            for high in range(low, 6):
                wanted = torch.arange(first, first + count).clamp(low, high).tolist()
                assert clamped(first, count, low, high) == wanted


@pytest.mark.parametrize("right", [None, -3, 0, 5])
@pytest.mark.parametrize("left", [None, -2, 0, 3])
def test_bounds_as_lists_are_those_as_tensors_and_those_of_the_pattern(left, right):
    k_len = 11
    keys = range(2, k_len)
    band = RowBand(Band(left, right), [(0, 30), (4, 9), (7, 3)])
    visible = Diagonals(left, right).dense(k_len, k_len)
    lo, hi = band.bounds([0], k_len, keys)
    for row in range(3):
        span = band.span(row, keys)
        assert (lo[row].tolist(), hi[row].tolist()) == band.listed_bounds(0, k_len, *span)
        for position in range(k_len):
            allowed = [key for key in range(*span) if visible[..., position, key]]
            assert [*range(lo[row, position], hi[row, position])] == allowed
