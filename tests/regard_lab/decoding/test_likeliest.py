"""The likeliest ids are those that a look at every score finds."""

import pytest
import torch

from regard_lab.decoding.sampling import likeliest, log_total


@pytest.mark.parametrize("vocab", [1, 7, 127, 383, 1000, 2111, 12 * 128])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_best_are_those_of_a_full_sort(vocab, count):
    for seed in range(5):
        scores = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
        scores[:, : vocab // 3] = -torch.inf
        order = scores.sort(-1, descending=True)
        values, ids = likeliest(scores, count)
        kept = min(count, vocab)
        assert values.shape == ids.shape == (3, kept)
        assert torch.equal(values, order.values[:, :kept])
        assert torch.equal(scores.gather(1, ids), values)


def test_of_equal_scores_a_greedy_search_takes_the_first():
    scores = torch.zeros(2, 2111)
    scores[0, [300, 301, 2110]] = 1.0
    scores[1, 2110] = 1.0
    assert likeliest(scores, 1)[1].tolist() == [[300], [2110]]


def test_neighbours_in_one_block_and_behind_the_last_one_are_found():
    scores = torch.full((1, 2111), -1.0)
    best = [2110, 5, 6, 7, 2109]  # 2111 = 16 blocks of 128, and 63 more
    scores[0, best] = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    assert likeliest(scores, 5)[1].tolist() == [best]


@pytest.mark.parametrize("rows", [0, 1, 3, 11])
@pytest.mark.parametrize("vocab", [5, 40_009])
def test_the_total_is_the_logarithm_of_the_sum_of_exponents(rows, vocab):
    scores = 3 * torch.randn(rows, vocab, dtype=torch.float64) + 700  # whose exponents alone would overflow in float32
    scores[:, 0] = -torch.inf
    found = log_total(scores)
    assert found.shape == (rows, 1)
    torch.testing.assert_close(found, (scores - 700).exp().sum(-1, keepdim=True).log() + 700)
