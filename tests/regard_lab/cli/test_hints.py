"""`regard translate` says on standard error why a translation is poor or slow; standard output stays as it was."""

import json

import pytest
from test_commands import regard

from regard.storage.sealed_json import render_sealed
from regard_lab.cli.running import Lengths, remark_on_arguments, remark_on_training
from regard_lab.models.storage import read_checkpoints
from regard_lab.training.checkpoint import STATE_FILE, read_training

PAIRS = "".join(f"The bird number {n} sang in the street.\tDer Vogel Nummer {n} sang.\n" for n in range(90))
SMALL = ("--dim", 16, "--heads", 2, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 256, "--steps", 2,
         "--validate-every", 2, "--schedule", "constant", "--cpu")  # fmt: skip
LONG = " ".join(["The bird sang in the street"] * 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "pairs.tsv").write_text(PAIRS)
    answer = regard("train", "translation", "--data", folder / "pairs.tsv", "--out", folder / "run", *SMALL)
    assert answer.returncode == 0, answer.stderr
    return folder / "run"


def planned(run, state, config):
    """Write other numbers into the last checkpoint."""
    folder = run / read_checkpoints(run).last
    content = {key: value for key, value in read_training(folder).items() if key != "sha256"}
    kept = (folder / STATE_FILE).read_bytes()
    content["state"] |= state
    content["config"] |= config
    (folder / STATE_FILE).write_bytes(render_sealed(content))
    return lambda: (folder / STATE_FILE).write_bytes(kept)


def said(run, *arguments, stdin=b""):
    answer = regard("translate", run, *arguments, stdin=stdin)
    assert answer.returncode == 0
    return answer.stderr.decode()


def test_a_training_that_has_not_ended_is_named_with_its_step(run):
    assert remark_on_training(run) is None
    back = planned(run, {}, {"steps": 2800})
    try:
        assert "this model is at step 2 of 2,800; its training is not finished" in said(run, "The bird sang.")
        planned(run, {"without_improvement": 3}, {"patience": 3})
        assert remark_on_training(run) is None  # it ended early
    finally:
        back()


def test_every_command_that_uses_a_model_says_that_its_training_has_not_ended(run, tmp_path):
    back = planned(run, {}, {"steps": 2800})
    try:
        for command in (("evaluate", run), ("view", run, "The bird sang.", "--export", tmp_path / "page.html")):
            answer = regard(*command)
            assert "at step 2 of 2,800; its training is not finished" in answer.stderr.decode(), command
    finally:
        back()


def test_a_language_model_and_a_classifier_say_that_their_training_has_not_ended(tmp_path):
    (tmp_path / "text.txt").write_text("The bird sang in the street.\n" * 60)
    (tmp_path / "labels.tsv").write_text("".join(f"good\tBird {n} sang.\nbad\tDay {n} was wet.\n" for n in range(40)))
    kinds = {
        "language-model": ("text.txt", ("generate", "The", "--max-tokens", 1)),
        "classifier": ("labels.tsv", ("classify", "A bird")),
    }
    for kind, (data, (command, *words)) in kinds.items():
        folder = tmp_path / kind
        answer = regard("train", kind, "--data", tmp_path / data, "--out", folder, *SMALL)
        assert answer.returncode == 0, answer.stderr
        assert "not finished" not in regard(command, folder, *words).stderr.decode()
        planned(folder, {}, {"steps": 2800})
        assert "at step 2 of 2,800; its training is not finished" in regard(command, folder, *words).stderr.decode()


def test_a_training_by_minutes_has_ended_when_they_are_used_up(run):
    back = planned(run, {"last_step": 500, "wall_seconds": 60.0}, {"steps": None, "minutes": 5.0})
    try:
        assert remark_on_training(run).startswith("this model is at step 2 of 500; ")
        planned(run, {"wall_seconds": 299.0, "look_seconds": 2.0}, {})
        assert remark_on_training(run) is None
    finally:
        back()


def test_words_without_quotes_are_noticed(run):
    assert f'regard translate {run} "The bird"' in said(run, "The", "bird")
    assert "quotes" not in said(run, "The bird", "The bird sang")
    assert "quotes" not in said(run, "bird")
    assert remark_on_arguments("a b", ["it's", "$5"]).endswith("""regard translate 'a b' 'it'"'"'s $5'""")


def test_an_empty_argument_is_told_and_an_empty_line_stays_one(run):
    assert "without words gives an empty line" in said(run, "")
    answer = regard("translate", run, stdin=b"\nThe bird\n")
    assert answer.stdout.splitlines()[0] == b""
    assert b"without words" not in answer.stderr


def test_a_sentence_far_longer_than_those_of_the_test_is_told_before_it_is_translated(run):
    assert "a sentence has 60 words, and the longest of the test sentences of this run has 8 words" in said(run, LONG)
    assert "a sentence has 60 words" in said(run, stdin=LONG.encode() + b"\n")
    assert Lengths(run).remark(" ".join(["word"] * 39)) is None
    assert Lengths(run.parent).remark(LONG) is None  # there is no test split to compare with


def test_json_is_unchanged_by_remarks(run):
    answer = regard("translate", run, "The", "bird", "--json")
    assert [json.loads(line)["source"] for line in answer.stdout.splitlines()] == ["The", "bird"]
