"""The next id: the filters against their definitions, how often each is drawn, and the most likely ids."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.decoding import Sampling
from regard_lab.decoding.sampling import filtered_probabilities, likeliest, log_total, uniform


def test_ids_are_drawn_as_often_as_they_are_likely():
    rows = torch.arange(20_011)
    scores = torch.randn(1, 13).expand(len(rows), -1)
    sampling = Sampling(temperature=0.7, top_k=9, seed=5)
    drawn = torch.bincount(sampling.choose(scores, rows, 3), minlength=13) / len(rows)
    likely = filtered_probabilities(scores[:1], temperature=0.7, top_k=9)[0]
    assert (drawn - likely).abs().max() < 4 * (0.25 / len(rows)) ** 0.5  # four standard deviations
    assert (drawn[likely == 0] == 0).all()


def test_the_first_numbers_of_many_seeds_are_uniform_and_none_is_nearly_nought_or_one():
    """By Kolmogorov and Smirnov: P(distance > d) <= 2 exp(-2 n d²), Massart 1990.

    Seed 0 once drew 1.9e-10, which is hardly by chance.
    """
    seeds = 4_000
    unlikely = 1e-9
    numbers = (
        torch.cat([uniform(seed, torch.tensor([0]), 0) for seed in range(seeds)]).sort().values
    )
    steps = torch.arange(seeds + 1, dtype=torch.float64) / seeds
    distance = max(float((steps[1:] - numbers).max()), float((numbers - steps[:-1]).max()))
    assert distance < math.sqrt(math.log(2 / unlikely) / (2 * seeds))
    assert 1e-5 / seeds < numbers[0]
    assert numbers[-1] < 1 - 1e-5 / seeds


def test_the_draws_are_frozen():
    """By the law in the conventions, in plain integers: seed, row, ids written so far, and the number."""
    for seed, row, place, number in (
        (0, 0, 0, "0x1.533cefbd1919ep-1"),
        (0, 0, 1, "0x1.b842a49145912p-1"),
        (0, 1, 0, "0x1.a94245cb12120p-2"),
        (1, 0, 0, "0x1.f5d573265d610p-2"),
        (7, 2 + (3 << 32), 5, "0x1.e26adddec6f5ap-1"),
        (2**63 - 1, 0, 0, "0x1.2ea9c7d9f5bdcp-2"),
    ):
        assert uniform(seed, torch.tensor([row]), place).item() == float.fromhex(number)


def test_no_bits_of_one_place_are_bits_of_another():
    """A number is 31 high bits and 21 low ones; were a draw shared, the bits of one would predict the other's."""
    numbers = torch.stack([uniform(3, torch.arange(1009), place) for place in range(12)])
    bits = (numbers * 2**52).long()
    high = bits >> 21
    low = bits % 2**21
    # both made of the same draw: the same first 21 bits
    by_top = ((high >> 10)[:, None] == low[None]).sum(-1)
    # 1009 / 2**21 are expected of each pair; more than 5 once in 10**22 pairs
    assert by_top.max() <= 5
    assert len(high.unique()) > 0.999 * high.numel()


def test_what_has_no_probability_is_never_drawn_even_at_the_edges(monkeypatch):
    scores = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    for number in (0.0, 0.5, 1 - 2**-52):
        drawn = torch.tensor([number], dtype=torch.float64)
        monkeypatch.setattr("regard_lab.decoding.sampling.uniform", lambda *_, drawn=drawn: drawn)
        assert Sampling().choose(scores, torch.tensor([0]), 0).item() in (1, 3)


def test_a_temperature_near_nought_draws_the_likeliest_id():
    scores = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    for temperature in (0, 1e-30, 1e-45, 1e-300):
        assert torch.equal(
            Sampling(temperature=temperature).choose(scores, torch.arange(3), 0), scores.argmax(-1)
        )
        probabilities = filtered_probabilities(
            scores, temperature=temperature if temperature < 1e-37 else 0
        )
        assert probabilities.tolist() == torch.nn.functional.one_hot(scores.argmax(-1), 9).tolist()


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.2, 4),
        "top_k": st.none() | st.integers(1, 40),
        "top_p": st.none() | st.floats(0.05, 1),
        "min_p": st.none() | st.floats(0, 1),
    }
)
SEEDS = st.integers(0, 2**32)


def random_scores(seed):
    return 3 * torch.randn(
        5, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def by_definition(scores, temperature, top_k, top_p, min_p):
    """One row, as the papers say it: a dictionary of ids and probabilities."""
    weights = {i: math.exp(score / temperature) for i, score in enumerate(scores)}
    if top_k is not None:
        least = sorted(weights.values())[-min(top_k, len(weights))]
        weights = {i: weight for i, weight in weights.items() if weight >= least}
    if top_p is not None:
        whole = sum(weights.values())
        nucleus = {}
        for i in sorted(weights, key=lambda i: -weights[i]):
            if nucleus and sum(nucleus.values()) >= top_p * whole:
                break
            nucleus[i] = weights[i]
        weights = nucleus
    if min_p is not None:
        weights = {
            i: weight for i, weight in weights.items() if weight >= min_p * max(weights.values())
        }
    whole = sum(weights.values())
    return [weights.get(i, 0.0) / whole for i in range(len(scores))]


@given(SEEDS, SETTINGS)
def test_the_filters_are_their_definitions_in_the_order_that_is_said_and_hugging_faces_processors(
    seed, settings
):
    scores = random_scores(seed)
    expected = torch.tensor(
        [by_definition(row, **settings) for row in scores.tolist()], dtype=torch.float64
    )
    probabilities = filtered_probabilities(scores, **settings)
    torch.testing.assert_close(probabilities, expected, rtol=1e-9, atol=1e-12)
    processes = pytest.importorskip("transformers").generation.logits_process
    expected = random_scores(seed)
    for name, process in (
        ("temperature", "Temperature"),
        ("top_k", "TopK"),
        ("top_p", "TopP"),
        ("min_p", "MinP"),
    ):
        if settings[name] is not None:
            expected = getattr(processes, f"{process}LogitsWarper")(settings[name])(None, expected)
    torch.testing.assert_close(probabilities, expected.softmax(-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"top_k": 1}, 4),  # those as likely as the last of them stay
        ({"top_k": 3}, 4),
        ({"top_p": 0.25}, 1),  # the first reaches 0.25 by itself
        ({"top_p": 0.5}, 2),
        ({"top_p": 0.75}, 3),
        ({"min_p": 1.0}, 4),  # at least as likely as the likeliest
    ],
)
def test_a_filter_met_exactly_keeps_what_its_definition_keeps(settings, count):
    """Four ids of probability 1/4: no operation rounds before the comparison."""
    probabilities = filtered_probabilities(torch.zeros(1, 4), **settings)
    assert (probabilities[0] > 0).tolist() == [True] * count + [False] * (4 - count)


def test_extreme_scores_and_temperatures_stay_numbers():
    scores = torch.tensor([[3e38, -3e38, 0.0, -torch.inf]])
    for temperature in (1e-30, 1.0, 1e30):
        probabilities = filtered_probabilities(scores, temperature=temperature, top_p=0.9)
        assert probabilities.sum().item() == pytest.approx(1)
        assert probabilities[0, 0] >= probabilities[0, 2] >= probabilities[0, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 2.0}, "min_p is 2.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ArgumentError, match=words):
        filtered_probabilities(random_scores(0), **settings)
    for seed in (-1, 2**63, 1.5, True):
        with pytest.raises(ArgumentError, match="seed is"):
            Sampling(seed=seed)


@pytest.mark.parametrize("vocab", [1, 7, 127, 383, 1000, 2111, 12 * 128])
def test_the_best_are_those_of_a_full_sort(vocab):
    for seed, count in product(range(5), (1, 2, 3, 5)):
        scores = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
        scores[:, : vocab // 3] = -torch.inf
        order = scores.sort(-1, descending=True)
        values, ids = likeliest(scores, count)
        most = min(count, vocab)
        assert values.shape == ids.shape == (3, most)
        assert torch.equal(values, order.values[:, :most])
        assert torch.equal(scores.gather(1, ids), values)
    scores = torch.zeros(2, 2111)
    scores[0, [300, 301, 2110]] = scores[1, 2110] = 1.0
    assert likeliest(scores, 1)[1].tolist() == [[300], [2110]]  # of equal scores the first


@pytest.mark.parametrize(("rows", "vocab"), [(0, 5), (3, 5), (1, 40_009), (11, 40_009)])
def test_the_total_is_the_logarithm_of_the_sum_of_exponents(rows, vocab):
    # whose exponents alone would overflow in float32
    scores = 3 * torch.randn(rows, vocab, dtype=torch.float64) + 700
    scores[:, 0] = -torch.inf
    totals = log_total(scores)
    assert totals.shape == (rows, 1)
    torch.testing.assert_close(totals, (scores - 700).exp().sum(-1, keepdim=True).log() + 700)
