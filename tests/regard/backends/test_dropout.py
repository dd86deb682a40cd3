"""Dropout depends on the indices of the pair: every block, backend, chunk and continuation drops the same weights."""

import torch

import regard as rg
from regard.backends.dropout import drop, kept
from regard.patterns import Grid
from regard.testing import make_qkv


def test_nothing_and_everything():
    q, k, v = make_qkv(requires_grad=True)
    assert torch.equal(rg.attention(q, k, v, dropout=0.0), rg.attention(q, k, v))
    output = rg.attention(q, k, v, dropout=1, dropout_seed=3)
    output.sum().backward()
    for x in (output, q.grad, k.grad, v.grad):
        assert (x == 0).all()
    assert torch.equal(
        drop(torch.ones(1, 1, 2, 3), 1.0, 0, Grid.whole(2, 3)), torch.zeros(1, 1, 2, 3)
    )


def test_seeds_are_taken_modulo_2_to_the_64():
    for seed, same in ((2**64 + 5, 5), (-1, 2**64 - 1), (2**63, -(2**63))):
        found = [kept(0.5, one, 2, 3, Grid.whole(5, 7)) for one in (seed, same, seed + 1)]
        assert (torch.equal(*found[:2]), torch.equal(*found[1:])) == (True, False)


def test_without_a_seed_one_draw_of_torchs_generator_decides():
    q, k, v = make_qkv()
    torch.manual_seed(5)
    first = rg.attention(q, k, v, dropout=0.5)
    second = rg.attention(q, k, v, dropout=0.5)
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
