"""The demo's whole way on a small corpus and a tiny model: what it says, draws and goes on from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commanding import refusal, regard, succeeded

from regard_lab.cli import demo
from regard_lab.text import translation_data
from regard_lab.training.recipes.evaluation import translators as pronouns

PROMISED = (
    "train_cpu_seconds",
    "bleu",
    "bleu_signature",
    "exact_match",
    "pronoun_accuracy",
    "contrast_accuracy",
    "majority_baseline",
    "referent_agreement",
    "lens_agreement",
    "pictures",
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    sizes = {
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "vocab_size": 400,
        "batch_tokens": 200,
        "warmup_steps": 2,
    }
    counts = {"train": 100, "valid": 6, "test": 4}
    for module, name, value in (
        (translation_data, "PRONOUN_COUNTS", counts),
        (pronouns, "PRONOUN_COUNTS", counts),
        (pronouns, "CONTRAST_PAIRS", 2),
        (pronouns, "SWAPS", 2),
        (demo, "EXPLAINED", 3),
        (demo, "CHOOSING", 3),
        (demo, "SETTINGS", replace(demo.SETTINGS, **sizes, validate_every=3)),
    ):
        monkeypatch.setattr(module, name, value)


def test_the_demo_ends_with_one_line_of_json_and_pictures_that_exist(tmp_path):
    answer = regard("demo", "--json", "--steps", 4, "--out", tmp_path / "run")
    assert answer.returncode == 0, answer.err
    (line,) = answer.out.splitlines()
    record = json.loads(line)
    assert set(PROMISED) <= record.keys()
    assert len(record["pictures"]) >= 4
    explained = (tmp_path / "run" / "README.txt").read_text()
    for name in ("pictures/", "samples/", "curves.png"):
        assert (f"\n{name}\n" in explained) == (tmp_path / "run" / name).exists(), name
    for picture in record["pictures"]:
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    for rate in (
        "exact_match",
        "pronoun_accuracy",
        "contrast_accuracy",
        "majority_baseline",
        "referent_agreement",
    ):
        assert 0 <= record[rate] <= 1
    assert record["page"] == str(tmp_path / "run" / "it.html")
    assert "<html" in Path(record["page"]).read_text()[:200]
    assert "nouns, animal: " in (tmp_path / "run" / "words.txt").read_text()
    assert all(part in answer.err for part in ("Not both pronouns are right", "not an explanation"))

    # finds it trained, and prints the story
    again = succeeded("demo", "--steps", 4, "--out", tmp_path / "run")
    assert " step 4: validation" not in again.err  # nothing was trained again
    for part in (
        "4 steps",
        "1. Training",
        "2. One word changed",
        "it.html",
        "3. Results",
        "4. Pictures",
    ):
        assert part in again.out
    assert "which pairs were trained on" not in again.out  # the run of the demo knows them
    assert "other settings" in refusal("demo", "--steps", 5, "--out", tmp_path / "run")

    scored = json.loads(regard("evaluate", tmp_path / "run", "--json").stdout)
    for rate in PROMISED[1:-2]:
        assert scored[rate] == record[rate], rate
