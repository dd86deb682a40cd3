"""`benchmarks/length_story.py`: its models, and that they are trained and scored."""

import pytest

from benchmarks.length_story import MODELS, StoryRecipe, measure, new_model
from regard_lab.teaching import read_report


def test_the_transformer_has_as_many_parameters_as_bahdanaus_model_within_one_percent():
    sizes = {}
    for name in MODELS:
        parameters = new_model(name, StoryRecipe()).parameters()
        sizes[name] = sum(parameter.numel() for parameter in parameters)
    assert abs(sizes["transformer"] / sizes["bahdanau"] - 1) < 0.01
    rows = read_report("length_story").figures["rows"]
    assert sorted((row["model"], row["parameters"]) for row in rows) == sorted(3 * [*sizes.items()])


@pytest.mark.parametrize("name", ["none", "transformer"])
def test_a_model_is_trained_and_scored(name):
    row = measure(name, 0, StoryRecipe(steps=2, batch=2, dim=8, hidden=8, tests=2))
    assert set(row["accuracy"]) == {"4", "8", "12", "16"}
    assert row["model"] == name
