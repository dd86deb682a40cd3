"""Draws: how often, the same again, and whatever stands beside them."""

import math

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.decoding import Sampling, filtered_probabilities
from regard_lab.decoding.sampling import uniform


def test_ids_are_drawn_as_often_as_they_are_likely():
    rows = torch.arange(20_011)
    scores = torch.randn(1, 13).expand(len(rows), -1)
    sampling = Sampling(temperature=0.7, top_k=9, seed=5)
    drawn = torch.bincount(sampling.choose(scores, rows, 3), minlength=13) / len(rows)
    likely = filtered_probabilities(scores[:1], temperature=0.7, top_k=9)[0]
    assert (drawn - likely).abs().max() < 4 * (0.25 / len(rows)) ** 0.5  # four standard deviations
    assert (drawn[likely == 0] == 0).all()


def test_numbers_are_uniform_and_differ_by_seed_row_and_place():
    numbers = torch.stack([uniform(seed, torch.arange(1009), place) for seed in (0, 1) for place in range(5)])
    assert len(numbers.unique()) == numbers.numel()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean().item() - 0.5) < 4 * (1 / 12 / numbers.numel()) ** 0.5
    assert (torch.corrcoef(numbers) - torch.eye(10)).abs().max() < 5 / 1009**0.5


def test_the_first_numbers_of_many_seeds_are_uniform_and_none_is_nearly_nought_or_one():
    """By Kolmogorov and Smirnov: P(distance > d) <= 2 exp(-2 n d²), Massart 1990.

    Seed 0 once drew 1.9e-10, which of 10,000 numbers one is with a chance of 1.9e-6.
    """
    seeds, unlikely = 10_000, 1e-9
    numbers = torch.cat([uniform(seed, torch.tensor([0]), 0) for seed in range(seeds)]).sort().values
    steps = torch.arange(seeds + 1, dtype=torch.float64) / seeds
    distance = max(float((steps[1:] - numbers).max()), float((numbers - steps[:-1]).max()))
    assert distance < math.sqrt(math.log(2 / unlikely) / (2 * seeds))
    assert 1e-5 / seeds < numbers[0]
    assert numbers[-1] < 1 - 1e-5 / seeds


# By the law in the conventions, in plain integers: seed, row, ids written so far, and the number.
GOLDEN = [
    (0, 0, 0, "0x1.533cefbd1919ep-1"),
    (0, 0, 1, "0x1.b842a49145912p-1"),
    (0, 1, 0, "0x1.a94245cb12120p-2"),
    (1, 0, 0, "0x1.f5d573265d610p-2"),
    (7, 2 + (3 << 32), 5, "0x1.e26adddec6f5ap-1"),
    (2**63 - 1, 0, 0, "0x1.2ea9c7d9f5bdcp-2"),
]


@pytest.mark.parametrize(("seed", "row", "place", "number"), GOLDEN)
def test_the_draws_are_frozen(seed, row, place, number):
    assert uniform(seed, torch.tensor([row]), place).item() == float.fromhex(number)


def test_no_bits_of_one_place_are_bits_of_another():
    """A number is 31 high bits and 21 low ones; were a draw shared, the bits of one would predict the other's."""
    numbers = torch.stack([uniform(3, torch.arange(1009), place) for place in range(12)])
    bits = (numbers * 2**52).long()
    high, low = bits >> 21, bits % 2**21
    by_top = ((high >> 10)[:, None] == low[None]).sum(-1)  # both made of the same draw: the same first 21 bits
    assert by_top.max() <= 5  # 1009 / 2**21 are expected of each pair; more than 5 once in 10**22 pairs
    assert len(high.unique()) > 0.999 * high.numel()


def test_a_row_draws_the_same_whatever_stands_beside_it():
    scores, rows = torch.randn(7, 29), torch.tensor([4, 0, 9, 2, 30, 1, 5])
    together = Sampling(seed=8).choose(scores, rows, 2)
    for at in range(7):
        alone = Sampling(seed=8).choose(scores[at : at + 1], rows[at : at + 1], 2)
        assert alone.item() == together[at]


def test_what_has_no_probability_is_never_drawn_even_at_the_edges(monkeypatch):
    scores = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    for number in (0.0, 0.5, 1 - 2**-52):
        monkeypatch.setattr(
            "regard_lab.decoding.sampling.uniform", lambda *_, n=number: torch.tensor([n], dtype=torch.float64)
        )
        assert Sampling().choose(scores, torch.tensor([0]), 0).item() in (1, 3)


def test_draws_touch_no_generator_of_torch():
    before = torch.get_rng_state()
    Sampling(seed=1).choose(torch.randn(3, 5, generator=torch.Generator()), torch.arange(3), 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ArgumentError, match="seed is"):
        Sampling(seed=seed)


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-300])
def test_a_temperature_near_nought_draws_the_likeliest_id(temperature):
    scores = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sampling(temperature=temperature).choose(scores, torch.arange(3), 0), scores.argmax(-1))
