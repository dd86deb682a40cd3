"""The filters of a draw against their definitions, written id by id, and against Hugging Face's processors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.decoding import filtered_probabilities

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
    return 3 * torch.randn(5, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_definition(scores, temperature, top_k, top_p, min_p):
    """One row, as the papers say it: a dictionary of ids and probabilities."""
    weights = {i: math.exp(score / temperature) for i, score in enumerate(scores)}
    if top_k is not None:
        least = sorted(weights.values())[-min(top_k, len(weights))]
        weights = {i: weight for i, weight in weights.items() if weight >= least}
    if top_p is not None:
        whole, kept = sum(weights.values()), {}
        for i in sorted(weights, key=lambda i: -weights[i]):
            if kept and sum(kept.values()) >= top_p * whole:
                break
            kept[i] = weights[i]
        weights = kept
    if min_p is not None:
        weights = {i: weight for i, weight in weights.items() if weight >= min_p * max(weights.values())}
    whole = sum(weights.values())
    return [weights.get(i, 0.0) / whole for i in range(len(scores))]


@given(SEEDS, SETTINGS)
def test_the_filters_are_their_definitions_in_the_order_that_is_said(seed, settings):
    scores = random_scores(seed)
    expected = torch.tensor([by_definition(row, **settings) for row in scores.tolist()], dtype=torch.float64)
    torch.testing.assert_close(filtered_probabilities(scores, **settings), expected, rtol=1e-9, atol=1e-12)


@given(SEEDS, SETTINGS)
def test_probabilities_are_those_of_hugging_faces_processors(seed, settings):
    processes = pytest.importorskip("transformers").generation.logits_process
    expected = random_scores(seed)
    expected = processes.TemperatureLogitsWarper(settings["temperature"])(None, expected)
    if settings["top_k"] is not None:
        expected = processes.TopKLogitsWarper(settings["top_k"])(None, expected)
    if settings["top_p"] is not None:
        expected = processes.TopPLogitsWarper(settings["top_p"])(None, expected)
    if settings["min_p"] is not None:
        expected = processes.MinPLogitsWarper(settings["min_p"])(None, expected)
    found = filtered_probabilities(random_scores(seed), **settings)
    torch.testing.assert_close(found, expected.softmax(-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, 4),  # those as likely as the last of them stay
        ({"top_k": 3}, 4),
        ({"top_p": 0.25}, 1),  # the first reaches 0.25 by itself
        ({"top_p": 0.5}, 2),
        ({"top_p": 0.75}, 3),
        ({"min_p": 1.0}, 4),  # at least as likely as the likeliest
    ],
)
def test_a_filter_met_exactly_keeps_what_its_definition_keeps(settings, kept):
    """Four ids of probability 1/4: no operation rounds before the comparison."""
    found = filtered_probabilities(torch.zeros(1, 4), **settings)
    assert (found[0] > 0).tolist() == [True] * kept + [False] * (4 - kept)


def test_temperature_zero_leaves_the_likeliest_alone():
    scores = random_scores(3)
    found = filtered_probabilities(scores, temperature=0)
    assert found.tolist() == torch.nn.functional.one_hot(scores.argmax(-1), 31).tolist()


def test_extreme_scores_and_temperatures_stay_numbers():
    scores = torch.tensor([[3e38, -3e38, 0.0, -torch.inf]])
    for temperature in (1e-30, 1.0, 1e30):
        found = filtered_probabilities(scores, temperature=temperature, top_p=0.9)
        assert found.sum().item() == pytest.approx(1)
        assert found[0, 0] >= found[0, 2] >= found[0, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 2.0}, "min_p is 2.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ArgumentError, match=said):
        filtered_probabilities(random_scores(0), **settings)
