"""`regard walkthrough` as people run it."""

import json

import pytest
import torch
from commanding import regard, succeeded
from safetensors.torch import save_file

from regard_lab.walkthrough import example, to_json, to_text, walk, walk_whole
from regard_lab.walkthrough.walks import walk_whole_run

SENTENCE = "Life is short, eat dessert first"


@pytest.fixture
def walked(monkeypatch):
    """The command: what it prints; it remarks nothing."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments):
        answer = succeeded("walkthrough", *arguments)
        assert (answer.err, answer.out[-1:]) == ("", "\n")
        return answer.out[:-1]

    return call


def test_the_sentence_is_walked_through_in_plain_text(walked):
    assert walked(SENTENCE) == to_text(walk(SENTENCE))


def test_json_is_that_of_the_library_with_the_same_options(walked):
    options = [
        "--word",
        "dessert",
        "--context",
        "a b",
        "--heads",
        4,
        "--kv-heads",
        2,
        "--head",
        2,
        "--dim",
        12,
    ]
    options += ["--score", "additive", "--positions", "sinusoidal", "--seed", 7, "--json"]
    expected = walk(
        SENTENCE,
        word="dessert",
        context="a b",
        heads=4,
        kv_heads=2,
        head=2,
        dim=12,
        score="additive",
        positions="sinusoidal",
        seed=7,
    )
    assert walked(SENTENCE, *options) == to_json(expected)
    assert json.loads(walked(SENTENCE, "--causal", "--json"))["settings"]["causal"] is True


def test_the_worked_example_of_the_articles_is_one_option(walked):
    assert walked("--example", "life-is-short") == to_text(walk(**example("life-is-short")))
    options = ["--word", "dessert", "--decimals", 2]
    expected = walk(**example("life-is-short") | {"word": "dessert", "decimals": 2})
    assert walked("--example", "life-is-short", *options) == to_text(expected)


def test_sizes_draws_and_weights_are_options(walked, tmp_path):
    weights = {"W_q": torch.ones(2, 5, 6)}
    save_file(weights, tmp_path / "weights.safetensors")
    options = [
        "--dim",
        6,
        "--query-dim",
        5,
        "--key-dim",
        5,
        "--value-dim",
        4,
        "--words",
        "letters",
        "--json",
    ]
    options += [
        "--draw",
        "uniform",
        "--weights-seed",
        3,
        "--weights",
        tmp_path / "weights.safetensors",
    ]
    expected = walk(
        SENTENCE,
        dim=6,
        query_dim=5,
        key_dim=5,
        value_dim=4,
        words="letters",
        draw="uniform",
        weights_seed=3,
        weights=weights,
    )
    assert walked(SENTENCE, *options) == to_json(expected)


def test_a_whole_model_is_one_option(walked, writer):
    text = walked(SENTENCE, "--whole", "--layers", 1)
    assert text == to_text(walk_whole(SENTENCE, layers=1))
    assert "\n    x + masked self-attention(norm(x))\n" in text  # of the drawing
    options = [
        "--context",
        "Das Leben",
        "--heads",
        4,
        "--kv-heads",
        2,
        "--dim",
        16,
        "--word",
        "is",
        "--seed",
        3,
    ]
    expected = walk_whole(
        SENTENCE,
        context="Das Leben",
        heads=4,
        kv_heads=2,
        dim=16,
        word="is",
        seed=3,
        positions="rotary",
    )
    assert walked(SENTENCE, "--whole", *options, "--positions", "rotary", "--json") == to_json(
        expected
    )
    expected = walk_whole(SENTENCE, model="encoder", words="letters")
    assert walked(SENTENCE, "--whole", "--model", "encoder", "--words", "letters") == to_text(
        expected
    )
    expected = walk_whole_run(writer, "the animal", word="animal")
    for options in (["--whole"], []):
        assert walked("the animal", "--run", writer, "--word", "animal", *options) == to_text(
            expected
        )


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_gets_lines_of_its_width(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", f"{width}")
    said = regard("walkthrough", SENTENCE, terminal=True).out
    assert [line.rstrip() for line in said.splitlines()] == to_text(
        walk(SENTENCE), width
    ).splitlines()
