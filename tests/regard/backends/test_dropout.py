"""Dropout depends on the indices of the pair: every block, backend, chunk and continuation drops the same weights."""

import numpy as np
import pytest
import torch

import regard as rg
from regard.backends.dropout import drop, kept
from regard.patterns import Grid
from regard.testing import kept_weights, make_qkv


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**64 + 5])
def test_the_hash_is_the_oracles(seed):
    for dropout, start in ((0.1, -3), (0.5, 0), (0.9, 100_000)):
        found = kept(dropout, seed, 2, 3, Grid.whole(5, 7, start))
        expected = kept_weights(dropout, seed, 2, 3, start + np.arange(5), np.arange(7))
        assert torch.equal(found, torch.from_numpy(expected))


def test_nothing_and_everything():
    q, k, v = make_qkv(requires_grad=True)
    assert torch.equal(rg.attention(q, k, v, dropout=0.0), rg.attention(q, k, v))
    output = rg.attention(q, k, v, dropout=1, dropout_seed=3)
    output.sum().backward()
    for x in (output, q.grad, k.grad, v.grad):
        assert (x == 0).all()
    assert torch.equal(drop(torch.ones(1, 1, 2, 3), 1.0, 0, Grid.whole(2, 3)), torch.zeros(1, 1, 2, 3))


def test_without_a_seed_one_draw_of_torchs_generator_decides():
    q, k, v = make_qkv()
    torch.manual_seed(5)
    first, second = rg.attention(q, k, v, dropout=0.5), rg.attention(q, k, v, dropout=0.5)
    torch.manual_seed(5)
    assert torch.equal(rg.attention(q, k, v, dropout=0.5), first)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    torch.randint(2**62, ())
    after = torch.rand(1)
    torch.manual_seed(5)
    rg.attention(q, k, v, dropout=0.5)
    assert torch.equal(torch.rand(1), after)
    torch.manual_seed(5)
    untouched = torch.rand(1)
    torch.manual_seed(5)
    rg.attention(q, k, v)  # no dropout, no draw
    assert torch.equal(torch.rand(1), untouched)
