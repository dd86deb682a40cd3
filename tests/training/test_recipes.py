"""Recipes from Python: settings of a new run, of one that goes on, and of a run that an older version began."""

import pytest

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import render_sealed
from regard.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    TranslationTraining,
    read_settings,
)

# What settings.json held before betas, epsilon, gradient_clip, save_every and log_every were settings of a run.
OLD = {
    "data": ["pairs.tsv"], "valid": [], "vocab_size": 300, "positions": "sinusoidal", "dim": 16, "heads": 4,
    "kv_heads": None, "layers": 1, "dropout": 0.1, "gradient_checkpointing": False, "batch_tokens": 200, "steps": 2,
    "minutes": None, "learning_rate": 0.002, "warmup_steps": 200, "schedule": "inverse_square_root",
    "weight_decay": 0.0, "accumulate": 1, "validate_every": 2, "patience": None, "keep": 1, "skip_non_finite": 0,
    "parallel": "ddp", "precision": "float32", "seed": 0, "model": "bahdanau", "attention": "full",
    "decoder_attention": "causal", "cross_attention": "full", "norm": "pre", "hidden": 12, "cell": "gru",
    "reach": "global", "window": 10, "input_feeding": False, "label_smoothing": 0.1,
}  # fmt: skip


@pytest.fixture
def old_run(tmp_path):
    replace_file(tmp_path / "settings.json", render_sealed({"settings": OLD}))
    return tmp_path


def test_the_settings_of_an_older_version_load_and_train_the_same(old_run):
    recipe = TranslationTraining.of(old_run, {}, resume=True)
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in vars(recipe.config).items()
            if name in OLD} == OLD  # fmt: skip
    before = {name: OLD[name] for name in OLD if name in recipe.config.training_config().to_dict()}
    now = recipe.config.training_config().to_dict()
    assert now == {
        **before, "betas": [0.9, 0.98], "epsilon": 1e-9, "gradient_clip": 1.0, "log_every": 10, "save_every": 2,
        "cooldown": 0.0,
    }  # fmt: skip


def test_only_what_may_change_is_changed_by_a_run_that_goes_on(old_run):
    assert TranslationTraining.decide(old_run, {"steps": 9, "keep": 3}, resume=True).steps == 9
    with pytest.raises(ArgumentError, match=r"begun with other settings \(dim 16 -> 32\)"):
        TranslationTraining.decide(old_run, {"dim": 32}, resume=True)
    with pytest.raises(ArgumentError, match="a run of another command"):
        LanguageModelTraining.decide(old_run, {}, resume=True)


def test_a_new_run_needs_data_and_a_folder_of_its_own(tmp_path):
    for recipe in (TranslationTraining, LanguageModelTraining, MaskedWordsTraining, ClassifierTraining):
        with pytest.raises(ArgumentError, match=f"--data is missing: name {recipe.DATA[:12]}"):
            recipe.of(tmp_path / "run", {})
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"diary\.txt"):
        TranslationTraining.of(tmp_path, {"data": ["pairs.tsv"]})


def test_resuming_where_no_run_is_says_so(tmp_path):
    remarks = []
    LanguageModelTraining.of(tmp_path / "run", {"data": ["text.txt"]}, resume=True, tell=remarks.append)
    assert remarks == [f"there is no training run in {tmp_path / 'run'} to resume; a new one begins"]
    with pytest.raises(ArgumentError, match=r"no training run in .* to resume; to begin one, --data is missing"):
        LanguageModelTraining.of(tmp_path / "run", {}, resume=True)


def test_a_recipe_refuses_the_config_of_another():
    with pytest.raises(ArgumentError, match=r"a ClassifierTraining\.Config"):
        ClassifierTraining(LanguageModelTraining.Config(data=("text.txt",)))


def test_a_setting_outside_its_range_is_refused_before_any_data_are_read(tmp_path):
    with pytest.raises(ArgumentError, match="warmup_steps is -1"):
        LanguageModelTraining.of(tmp_path / "run", {"data": ["nowhere.txt"], "warmup_steps": -1})


def test_training_from_python_says_what_it_does_and_keeps_its_settings(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the bird sang in the street\n" * 60)
    said = []
    config = LanguageModelTraining.Config(
        data=(str(text),), tokeniser="byte", dim=16, heads=2, layers=1, block=16, batch_tokens=64, steps=2,
        validate_every=2,
    )  # fmt: skip
    result = LanguageModelTraining(config, said.append).train(tmp_path / "run", cpu=True)
    assert (result.stopped, result.steps) == ("steps", 2)
    assert any("a language model of " in line for line in said)
    kept = read_settings(tmp_path / "run")
    assert (kept["block"], kept["steps"]) == (16, 2)
    assert not (tmp_path / "run" / "samples").exists()  # they are written where that is asked for
