import math

import pytest
import torch
from teaching import failing, starting

from regard.layers import MultiHeadAttention
from regard.positions import Sinusoidal
from regard_lab.lessons import find_lesson, positions


def by_loops(position, dim):
    """Vaswani et al. 2017, section 3.5, number by number."""
    pairs = (position / 10_000 ** (2 * pair / dim) for pair in range(dim // 2))
    return [turn(angle) for angle in pairs for turn in (math.sin, math.cos)]


def test_the_waves_are_the_papers():
    drawn = torch.tensor(find_lesson("positions").teach().numbers["waves"])
    expected = torch.tensor([by_loops(place, positions.DIM) for place in range(positions.DRAWN)])
    torch.testing.assert_close(drawn, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shift", [1, 5, 12])
def test_a_shift_is_a_linear_map_to_1e_6(shift):
    matrix = positions.shift_matrix(Sinusoidal(10), shift)
    for place in (0, 7, 400):
        moved = matrix @ torch.tensor(by_loops(place, 10), dtype=torch.float64)
        expected = torch.tensor(by_loops(place + shift, 10), dtype=torch.float64)
        torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(10, dtype=torch.float64), atol=1e-6, rtol=0)


def test_other_waves_are_seen(monkeypatch):
    monkeypatch.setattr(positions, "Sinusoidal", lambda dim: Sinusoidal(dim, base=500.0))
    assert starting(failing("positions"), "Wavelengths grow")


def test_a_matrix_of_another_shift_is_seen(monkeypatch):
    real = positions.shift_matrix
    monkeypatch.setattr(positions, "shift_matrix", lambda waves, shift: real(waves, shift + 1))
    assert starting(failing("positions"), "PE(pos + k)")


def test_a_layer_that_knows_the_order_by_itself_is_seen(monkeypatch):
    class Causal(MultiHeadAttention):
        def __init__(self, dim, heads):
            super().__init__(dim, heads, pattern="causal")

    monkeypatch.setattr(positions, "MultiHeadAttention", Causal)
    assert starting(failing("positions"), "Without positions")


def test_positions_that_are_all_alike_are_seen(monkeypatch):
    monkeypatch.setattr(Sinusoidal, "forward", lambda self, places: torch.ones(*places.shape, self.dim))
    assert starting(failing("positions"), "With positions", "Wavelengths grow", "PE(pos + k)")
