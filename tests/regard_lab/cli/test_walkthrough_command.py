"""`regard walkthrough` as people run it."""

import json
import re
import sys

import pytest
import torch
from safetensors.torch import save_file

from regard_lab.cli import main
from regard_lab.lessons.walkthrough import (
    example,
    to_html,
    to_json,
    to_text,
    walk,
    walk_run,
    walk_whole,
    walk_whole_run,
)

SENTENCE = "Life is short, eat dessert first"


@pytest.fixture
def regard(capsys, monkeypatch):
    """The command in this process: exit code, standard output, standard error."""

    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", "walkthrough", *map(str, arguments)])
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # `python -m pytest` would be named otherwise
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return call


def test_the_sentence_is_walked_through_in_plain_text(regard):
    assert regard(SENTENCE) == (0, to_text(walk(SENTENCE)) + "\n", "")


def test_json_is_that_of_the_library_with_the_same_options(regard):
    options = ["--word", "dessert", "--context", "a b", "--heads", 4, "--kv-heads", 2, "--head", 2, "--dim", 12]
    options += ["--score", "additive", "--positions", "sinusoidal", "--seed", 7, "--json"]
    expected = walk(
        SENTENCE, word="dessert", context="a b", heads=4, kv_heads=2, head=2, dim=12, score="additive",
        positions="sinusoidal", seed=7,
    )  # fmt: skip
    assert regard(SENTENCE, *options) == (0, to_json(expected) + "\n", "")
    assert json.loads(regard(SENTENCE, "--causal", "--json")[1])["settings"]["causal"] is True


def test_the_worked_example_of_the_articles_is_one_option(regard):
    assert regard("--example", "life-is-short") == (0, to_text(walk(**example("life-is-short"))) + "\n", "")
    options = ["--columns", "--word", "dessert", "--decimals", 2]
    expected = walk(**example("life-is-short") | {"columns": True, "word": "dessert", "decimals": 2})
    assert regard("--example", "life-is-short", *options) == (0, to_text(expected) + "\n", "")


def test_sizes_draws_and_weights_are_options(regard, tmp_path):
    weights = {"W_q": torch.ones(2, 5, 6)}
    save_file(weights, tmp_path / "weights.safetensors")
    options = ["--dim", 6, "--query-dim", 5, "--key-dim", 5, "--value-dim", 4, "--words", "letters", "--json"]
    options += ["--draw", "uniform", "--weights-seed", 3, "--weights", tmp_path / "weights.safetensors"]
    expected = walk(
        SENTENCE, dim=6, query_dim=5, key_dim=5, value_dim=4, words="letters", draw="uniform", weights_seed=3,
        weights=weights,
    )  # fmt: skip
    assert regard(SENTENCE, *options) == (0, to_json(expected) + "\n", "")


def test_a_whole_model_is_one_option(regard, run, tmp_path):
    assert regard(SENTENCE, "--whole", "--layers", 1) == (0, to_text(walk_whole(SENTENCE, layers=1)) + "\n", "")
    options = ["--context", "Das Leben", "--heads", 4, "--kv-heads", 2, "--dim", 16, "--word", "is", "--seed", 3]
    expected = walk_whole(
        SENTENCE, context="Das Leben", heads=4, kv_heads=2, dim=16, word="is", seed=3, positions="rotary"
    )
    assert regard(SENTENCE, "--whole", *options, "--positions", "rotary", "--json") == (0, to_json(expected) + "\n", "")
    expected = walk_whole(SENTENCE, model="encoder", words="letters")
    assert regard(SENTENCE, "--whole", "--model", "encoder", "--words", "letters")[1] == to_text(expected) + "\n"
    expected = walk_whole_run(run, "the animal")
    assert regard("the animal", "--whole", "--run", run) == (0, to_text(expected) + "\n", "")
    page = tmp_path / "whole.html"
    assert regard("the animal", "--whole", "--run", run, "--html", page)[0] == 0
    assert page.read_text(encoding="utf-8") == to_html(expected)


def test_a_page_is_written_and_the_answer_says_where(regard, tmp_path):
    page = tmp_path / "walk.html"
    code, said, remarks = regard(SENTENCE, "--html", page)
    assert (code, remarks) == (0, "")
    assert len(said.splitlines()) == 1
    assert str(page) in said
    assert page.read_text(encoding="utf-8") == to_html(walk(SENTENCE))


def test_a_run_is_walked_through_with_its_own_tokeniser(regard, run):
    code, said, _ = regard("the animal", "--run", run, "--layer", 1, "--head", 1, "--word", "animal")
    assert (code, said) == (0, to_text(walk_run(run, "the animal", layer=1, head=1, word="animal")) + "\n")


@pytest.mark.parametrize(
    ("kind", "coloured", "width"), [("xterm-256color", True, 100), ("xterm", False, 100), ("dumb", False, 80)]
)
def test_a_terminal_gets_the_same_words_and_colours_if_it_has_enough(regard, monkeypatch, kind, coloured, width):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "100")
    code, said, _ = regard(SENTENCE)
    assert code == 0
    assert ("\x1b[" in said) == coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    assert [line.rstrip() for line in plain.splitlines()] == to_text(walk(SENTENCE), width).splitlines()
