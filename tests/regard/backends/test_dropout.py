"""Dropout depends on the indices of the pair: every block, backend, chunk and continuation drops the same weights."""

import pytest
import torch

import regard as rg
from regard.backends.dropout import drop, kept
from regard.patterns.grid import Grid
from regard.testing import make_qkv


def test_a_dropout_of_0_drops_nothing_and_one_of_1_everything_with_its_gradients():
    q, k, v = make_qkv(requires_grad=True)
    assert torch.equal(rg.attention(q, k, v, dropout=0.0), rg.attention(q, k, v))

    output = rg.attention(q, k, v, dropout=1, dropout_seed=3)
    for x in (output, *torch.autograd.grad(output.sum(), (q, k, v))):
        assert (x == 0).all()
    weights = torch.ones(1, 1, 2, 3)
    assert torch.equal(drop(weights, 1.0, 0, Grid.whole(2, 3)), torch.zeros(1, 1, 2, 3))


@pytest.mark.parametrize(
    ("seed", "equal_seed"), [(2**64 + 5, 5), (-1, 2**64 - 1), (2**63, -(2**63))]
)
def test_seeds_are_taken_modulo_2_to_the_64(seed, equal_seed):
    def kept_by(seed: int) -> torch.Tensor:
        return kept(0.5, seed, 2, 3, Grid.whole(5, 7))

    assert torch.equal(kept_by(seed), kept_by(equal_seed))
    assert not torch.equal(kept_by(seed), kept_by(seed + 1))


def next_number_after(call) -> torch.Tensor:
    """The number that torch's generator draws after a call, from seed 5."""
    torch.manual_seed(5)
    call()
    return torch.rand(1)


def test_without_a_seed_one_draw_of_torchs_generator_decides():
    q, k, v = make_qkv()
    torch.manual_seed(5)
    first = rg.attention(q, k, v, dropout=0.5)
    second = rg.attention(q, k, v, dropout=0.5)
    torch.manual_seed(5)
    assert torch.equal(rg.attention(q, k, v, dropout=0.5), first)
    assert not torch.equal(first, second)

    one_draw = next_number_after(lambda: torch.randint(2**62, ()))
    assert next_number_after(lambda: rg.attention(q, k, v, dropout=0.5)) == one_draw
    no_draw = next_number_after(lambda: None)
    assert next_number_after(lambda: rg.attention(q, k, v)) == no_draw != one_draw
