"""All hashed random numbers: the first draws of thousands of seeds are uniform, and no seed is special."""

import math

import pytest
import torch

from regard.backends.dropout import row_states, write_kept
from regard.mechanisms.draws import directions
from regard.patterns import Grid, RandomBlocks

SEEDS = 4_000
UNLIKELY = 1e-9  # of a test that fails although the draws are right


def test_the_first_directions_of_many_seeds_are_normal():
    """By Kolmogorov and Smirnov: P(distance > d) <= 2 exp(-2 n d²), Massart 1990.

    Of Performer, RandomFeature and LSH: standard normal numbers, as shares of those below them.
    """
    like = torch.empty(0, dtype=torch.float64)
    normal = torch.stack([directions(seed, 1, 1, False, like)[0, 0] for seed in range(SEEDS)])
    numbers = ((1 + torch.erf(normal / math.sqrt(2))) / 2).sort().values
    steps = torch.arange(SEEDS + 1, dtype=torch.float64) / SEEDS
    distance = max(float((steps[1:] - numbers).max()), float((numbers - steps[:-1]).max()))
    assert distance < math.sqrt(math.log(2 / UNLIKELY) / (2 * SEEDS))


def test_the_first_pair_is_dropped_as_often_as_any():
    """By Hoeffding: P(share off by more than d) <= 2 exp(-2 n d²); a rate of 1e-9 drops one of 4,000 once in 10^5."""
    grid, rates = Grid.whole(1, 1, 0), (0.1, 0.5, 0.9)
    bound = math.sqrt(math.log(2 / UNLIKELY) / (2 * SEEDS))
    states = torch.stack([row_states(seed, 1, 1, grid) for seed in range(SEEDS)])
    for rate in rates:
        kept = write_kept(torch.empty(SEEDS, 1, 1, 1, 1), rate, states, grid.k_pos)
        assert abs(float(kept.mean()) - (1 - rate)) < bound
    assert write_kept(torch.empty(SEEDS, 1, 1, 1, 1), 1e-9, states, grid.k_pos).all()


@pytest.mark.parametrize("past", [False, True])
def test_the_first_block_of_many_seeds_is_any(past):
    """By chi-square: P(X > k + 2 sqrt(k t) + 2 t) <= exp(-t) for k degrees of freedom, Laurent and Massart 2000."""
    blocks, seeds = 20, SEEDS // 10
    query = blocks - 1 if past else 0
    patterns = [RandomBlocks(1, block=1, seed=seed, past=past) for seed in range(seeds)]
    drawn = torch.stack([pattern.dense(1, blocks, q_start=query)[0] for pattern in patterns]).sum(0)
    off = float(((drawn - seeds / blocks) ** 2 / (seeds / blocks)).sum())
    degrees, t = blocks - 1, math.log(1 / UNLIKELY)
    assert drawn.sum() == seeds
    assert off < degrees + 2 * math.sqrt(degrees * t) + 2 * t
