"""`benchmarks/length_story.py`: its models, its promise, and that its committed page says what its numbers say."""

import pytest

from benchmarks import length_story
from benchmarks.length_story import MODELS, StoryRecipe, new_model, verdict
from regard_lab.teaching import read_report

KEPT = read_report("length_story").figures


def test_the_transformer_has_as_many_parameters_as_bahdanaus_model_within_one_percent():
    sizes = {name: sum(one.numel() for one in new_model(name, StoryRecipe()).parameters()) for name in MODELS}
    assert abs(sizes["transformer"] / sizes["bahdanau"] - 1) < 0.01
    assert {(row["model"], row["parameters"]) for row in KEPT["rows"]} == set(sizes.items())


def test_the_committed_page_is_written_from_its_numbers():
    expected = length_story.PAGE.read_text("utf-8").splitlines()
    written = length_story.page(StoryRecipe(**KEPT["recipe"]), KEPT["rows"])
    del expected[2], written[2]  # the line of the day
    assert written == expected
    assert [sum(row["model"] == name for row in KEPT["rows"]) for name in MODELS] == [3] * len(MODELS)


@pytest.mark.parametrize("name", ["none", "transformer"])
def test_a_model_is_trained_and_scored(name):
    row = length_story.measure(name, 0, StoryRecipe(steps=2, batch=2, dim=8, hidden=8, tests=2))
    assert set(row["accuracy"]) == {"4", "8", "12", "16"}
    assert row["model"] == name


@pytest.mark.parametrize(("share", "kept"), [(0.8, True), (0.7, False)])
def test_the_promise_counts_every_model_with_attention(share, kept):
    rows = [{"model": "none", "accuracy": {"12": 0.1}}, {"model": "bahdanau", "accuracy": {"12": 1.0}}]
    assert verdict([*rows, {"model": "transformer", "accuracy": {"12": share}}])[0] is kept
