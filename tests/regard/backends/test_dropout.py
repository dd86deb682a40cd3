"""Dropout depends on the indices of the pair: every block, backend, chunk and continuation drops the same weights."""

import math

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


def test_a_block_drops_what_the_whole_drops_there():
    whole = Grid.whole(9, 12, 3)
    everything = kept(0.4, 11, 2, 3, whole)
    assert torch.equal(kept(0.4, 11, 2, 3, whole.block(range(2, 5), range(7, 12))), everything[:, :, 2:5, 7:12])


def test_a_start_for_each_row_drops_what_each_row_alone_drops():
    both = kept(0.4, 11, 2, 3, Grid.whole(4, 6, torch.tensor([1, 5])))
    for row, start in enumerate((1, 5)):
        assert torch.equal(both[row], kept(0.4, 11, 2, 3, Grid.whole(4, 6, start))[row])


@pytest.mark.parametrize("dropout", [0.05, 0.5, 0.9])
def test_the_rate_holds_over_all_and_at_each_place(dropout):
    masks = torch.stack([kept(dropout, seed, 2, 2, Grid.whole(8, 8)) for seed in range(1000, 2000)]).double()
    sigma = math.sqrt(dropout * (1 - dropout))
    assert abs(float(masks.mean()) - (1 - dropout)) < 4.9 * sigma / math.sqrt(masks.numel())  # p > 1e-6
    assert float((masks.mean(0) - (1 - dropout)).abs().max()) < 5.5 * sigma / math.sqrt(len(masks))  # 256 places
    centred = masks.flatten(1) - (1 - dropout)
    together = (centred.T @ centred).triu(1)  # of two places, a sum of independent products of deviation sigma²
    unlikely = math.log(2 * 256 * 255 / 2 / 1e-6)  # p > 1e-6 over all pairs of places, by Bernstein's inequality
    largest = max(dropout, 1 - dropout) ** 2 * unlikely / 3
    bound = largest + math.sqrt(largest**2 + 2 * unlikely * len(masks) * sigma**4)
    assert float(together.abs().max()) < bound < len(masks) * sigma**2  # no two places fall together


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


def test_chunks_of_queries_drop_what_the_whole_drops():
    q, k, v = make_qkv(q_len=9, k_len=9, dtype=torch.float64)
    whole = rg.attention(q, k, v, pattern="causal", dropout=0.5, dropout_seed=3)
    parts = [
        rg.attention(
            q[:, :, at : at + 2], k[:, :, : at + 2], v[:, :, : at + 2], pattern="causal", dropout=0.5, dropout_seed=3,
            q_start=at,
        )
        for at in range(0, 9, 2)
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-14)
