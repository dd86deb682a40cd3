"""JSON holds every number in full, and enough to compute them again."""

import json
import math

import pytest
import torch
from walk_cases import HOSTILE, case

from regard_lab.lessons.walkthrough import to_json, walk


def numbers(value):
    """A tensor of what JSON tells; null is minus infinity."""
    if isinstance(value, list):
        return torch.stack([numbers(one) for one in value])
    return torch.tensor(-math.inf if value is None else value, dtype=torch.float64)


@pytest.mark.parametrize("name", ["self", "grouped", "waves across", "additive grouped"])
def test_every_value_comes_back(name):
    found = case(name)
    record = json.loads(to_json(found), parse_constant=pytest.fail)
    assert record["word"] == {"number": found.word + 1, "text": found.chosen}
    assert [step["name"] for step in record["steps"]] == [step.name for step in found.steps]
    for told, step in zip(record["steps"], found.steps, strict=True):
        if isinstance(step.value, torch.Tensor):
            assert torch.equal(numbers(told["value"]), step.value.double())
            assert told["shape"] == list(step.value.shape)
        else:
            assert told["value"] == list(step.value)


def test_what_is_hidden_is_null():
    found = walk("a b c", causal=True)
    masked = next(step for step in json.loads(to_json(found))["steps"] if step["name"] == "masked_scores")
    assert [[one is None for one in row] for row in masked["value"]] == [
        [False, True, True], [False, False, True], [False, False, False],
    ]  # fmt: skip
    assert found["masked_scores"][0, 1] == -math.inf


def test_what_was_given_is_there_to_start_from():
    record = json.loads(to_json(walk(HOSTILE, score="additive")))
    given = {one["name"]: one for one in record["given"]}
    assert given["text"]["value"] == list(HOSTILE)
    for name in ("table", "W_q", "W_k", "W_v", "W_o", "W_a", "U_a", "v_a"):
        assert torch.tensor(given[name]["value"]).shape == tuple(given[name]["shape"])
    assert record["checks"][-1]["line"] == "layer(x[None])[0]"
