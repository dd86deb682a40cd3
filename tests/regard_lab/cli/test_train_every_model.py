"""Every translator by the same commands: trained, gone on with, translated with, scored and looked at."""

import json

import pytest
from test_commands import regard

from regard_lab.text import translation_data
from regard_lab.training.recipes import evaluation as pronouns
from regard_lab.training.recipes.run_folder import read_settings
from regard_lab.training.recipes.translation import MODELS

SMALL = (
    "--dim", 16, "--layers", 1, "--vocab-size", 300, "--batch-tokens", 200, "--validate-every", 2, "--cpu",
    "--schedule", "constant",
)  # fmt: skip
RECURRENT = [name for name in MODELS if name != "transformer"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(120)))
    return path


def own(model):
    return ("--heads", 2) if model == "transformer" else ("--hidden", 12)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_trained_gone_on_with_and_used(model, pairs, tmp_path):
    run = tmp_path / "run"
    begun = regard(
        "train", "translation", "--data", pairs, "--model", model, "--out", run, "--steps", 2, *SMALL, *own(model)
    )
    assert begun.returncode == 0, begun.stderr.decode()
    assert f"{model} of " in begun.stderr.decode()
    on = regard("train", "translation", "--out", run, "--resume", "--steps", 4, "--cpu")
    assert "going on after step 2" in on.stderr.decode()
    assert read_settings(run)["model"] == model
    assert regard("translate", run, "sentence number 7", "--beam", 2).stdout.count(b"\n") == 1
    assert 0 <= json.loads(regard("evaluate", run, "--json").stdout)["exact_match"] <= 1
    look = tmp_path / "look.png"
    drawn = regard("translate", run, "sentence number 7", "--picture", look)
    if model == "none":
        assert drawn.returncode == 2
        assert "no attention weights" in drawn.stderr.decode()
        assert not look.exists()
        assert drawn.stdout == b""
    else:
        assert look.read_bytes().startswith(b"\x89PNG"), drawn.stderr.decode()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (("--model", "bahdanau", "--heads", 2), "--heads belongs to the Transformer"),
        (("--model", "none", "--kv-heads", 1, "--attention", "causal"), "--attention, --kv-heads belongs"),
        (("--cell", "lstm"), "--cell belongs to recurrent models"),
        (("--model", "transformer", "--input-feeding"), "--input-feeding belongs to recurrent models"),
        (("--model", "bahdanau", "--input-feeding"), "only luong-dot"),
        (("--model", "rnn"), "model 'rnn' does not exist; there are transformer, bahdanau"),
    ],
)
def test_a_setting_of_another_model_is_refused_in_one_sentence(wish, words, pairs, tmp_path):
    answer = regard("train", "translation", "--data", pairs, "--out", tmp_path / "run", *wish)
    said = answer.stderr.decode()
    assert answer.returncode == 2, said
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_recurrent_run_of_the_embedded_corpus_is_judged_by_its_pronouns(monkeypatch, tmp_path):
    for module in (translation_data, pronouns):
        monkeypatch.setattr(module, "PRONOUN_COUNTS", {"train": 200, "valid": 12, "test": 8})
    monkeypatch.setattr(pronouns, "CONTRAST_PAIRS", 3)
    monkeypatch.setattr(pronouns, "SWAPS", 3)
    run = tmp_path / "run"
    options = ("--vocab-size", 400, "--batch-tokens", 200, "--hidden", 12, "--dim", 16, "--cpu")
    regard("train", "translation", "--data", "pronouns", "--model", "luong-dot", "--out", run, "--steps", 1, *options)
    record = json.loads(regard("evaluate", run, "--json").stdout)
    assert {"pronoun_accuracy", "contrast_accuracy", "swap_followed"} <= record.keys()
    assert "referent_agreement" not in record  # a recurrent encoder has no self-attention to look with
    assert "agreement" not in regard("evaluate", run).stdout.decode()


@pytest.mark.parametrize(("wish", "fed"), [((), True), (("--no-input-feeding",), False)])
def test_a_dot_product_hears_what_was_looked_at_unless_it_shall_not(wish, fed, pairs, tmp_path):
    options = ("--vocab-size", 300, "--dim", 16, "--hidden", 12, "--steps", 1, "--cpu")
    run = tmp_path / "run"
    regard("train", "translation", "--data", pairs, "--model", "luong-dot", "--out", run, *options, *wish)
    assert json.loads((run / "settings.json").read_text())["settings"]["input_feeding"] is fed
