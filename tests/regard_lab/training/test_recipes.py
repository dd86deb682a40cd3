"""Recipes from Python: settings of a new run and of one that goes on."""

import re
import shutil

import pytest

from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.storage.files import replace_file
from regard.storage.sealed_json import render_sealed
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import read_pairs
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    TranslationTraining,
    run_folder,
)
from regard_lab.training.recipes.evaluation import evaluate_run
from regard_lab.training.recipes.run_folder import count_trained, read_test

# What settings.json held before betas, epsilon, gradient_clip, save_every and log_every were settings of a run.
OLD = {
    "data": ["pairs.tsv"],
    "valid": [],
    "vocab_size": 300,
    "positions": "sinusoidal",
    "dim": 16,
    "heads": 4,
    "kv_heads": None,
    "layers": 1,
    "dropout": 0.1,
    "gradient_checkpointing": False,
    "batch_tokens": 200,
    "steps": 2,
    "minutes": None,
    "learning_rate": 0.002,
    "warmup_steps": 200,
    "schedule": "inverse_square_root",
    "weight_decay": 0.0,
    "accumulate": 1,
    "validate_every": 2,
    "patience": None,
    "keep": 1,
    "precision": "float32",
    "seed": 0,
    "model": "bahdanau",
    "attention": "full",
    "decoder_attention": "causal",
    "cross_attention": "full",
    "norm": "pre",
    "hidden": 12,
    "cell": "gru",
    "reach": "global",
    "window": 10,
    "input_feeding": False,
    "label_smoothing": 0.1,
}


@pytest.fixture
def old_run(tmp_path):
    replace_file(tmp_path / "settings.json", render_sealed({"settings": OLD | {"parallel": "ddp"}}))
    return tmp_path


def test_the_settings_of_an_older_version_load_and_train_the_same(old_run):
    recipe = TranslationTraining.of(old_run, {}, resume=True)
    assert {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(recipe.config).items()
        if name in OLD
    } == OLD
    before = {name: OLD[name] for name in OLD if name in recipe.config.training_config().to_dict()}
    now = recipe.config.training_config().to_dict()
    assert now == {
        **before,
        "betas": [0.9, 0.98],
        "epsilon": 1e-9,
        "gradient_clip": 1.0,
        "log_every": 10,
        "save_every": 2,
        "cooldown": 0.0,
    }


def test_only_what_may_change_is_changed_by_a_run_that_goes_on(old_run):
    assert TranslationTraining.decide(old_run, {"steps": 9, "keep": 3}, resume=True).steps == 9
    with pytest.raises(ArgumentError, match=r"begun with other settings \(dim 16 -> 32\)"):
        TranslationTraining.decide(old_run, {"dim": 32}, resume=True)
    with pytest.raises(ArgumentError, match="a run of another command"):
        LanguageModelTraining.decide(old_run, {}, resume=True)
    replace_file(old_run / "settings.json", render_sealed({"settings": OLD | {"parallel": "fsdp"}}))
    assert TranslationTraining.settings_from(str(old_run))["dim"] == 16
    with pytest.raises(
        ArgumentError,
        match="by an earlier version, with the setting parallel, which is gone; begin",
    ):
        TranslationTraining.decide(old_run, {}, resume=True)


def test_a_new_run_needs_data_and_a_folder_of_its_own(tmp_path):
    for recipe in (
        TranslationTraining,
        LanguageModelTraining,
        MaskedWordsTraining,
        ClassifierTraining,
    ):
        with pytest.raises(ArgumentError, match=f"--data is missing: name {recipe.DATA[:12]}"):
            recipe.of(tmp_path / "run", {})
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"diary\.txt"):
        TranslationTraining.of(tmp_path, {"data": ["pairs.tsv"]})


def test_resuming_where_no_run_is_says_so(tmp_path):
    remarks = []
    (tmp_path / "text.txt").write_text("a bird sang\n")
    LanguageModelTraining.of(
        tmp_path / "run", {"data": [tmp_path / "text.txt"]}, resume=True, tell=remarks.append
    )
    assert remarks == [
        f"there is no training run in {tmp_path / 'run'} to resume; a new one begins"
    ]
    with pytest.raises(
        ArgumentError, match=r"no training run in .* to resume; to begin one, --data is missing"
    ):
        LanguageModelTraining.of(tmp_path / "run", {}, resume=True)


SMALL = {"dim": 16, "heads": 2, "layers": 1, "steps": 3, "batch_tokens": 256}


def trained(folder, remarks, progress=None, samples=False, **given):
    """A translator on forty pairs of few words; what it tells goes into `remarks`."""
    table = folder / "pairs.tsv"
    table.write_text("".join(f"number {n}\tNummer {n}\n" for n in range(40)))
    recipe = TranslationTraining.of(
        folder / "run", {"data": [str(table)], **SMALL, **given}, tell=remarks.append
    )
    return recipe.prepare().run(folder / "run", cpu=True, progress=progress, samples=samples)


def test_too_little_to_learn_from_is_told_and_so_is_a_smaller_vocabulary_than_allowed(tmp_path):
    remarks = []
    trained(tmp_path, remarks)
    assert any(
        remark.startswith("there is too little to learn from: 32 pairs of ") for remark in remarks
    ), remarks
    assert any(
        "(of at most 500; those that occur only inside longer ones are dropped)" in remark
        for remark in remarks
    )
    assert any("vocabulary up to 500" in remark for remark in remarks), remarks


@pytest.mark.parametrize(("seconds", "times"), [(run_folder.DRAW_EVERY, 1), (0.0, 4)])
def test_curves_are_drawn_after_the_last_step_and_before_it_only_where_the_last_are_old(
    tmp_path, monkeypatch, seconds, times
):
    drawn = []
    monkeypatch.setattr(run_folder, "DRAW_EVERY", seconds)
    # their pictures take seconds
    monkeypatch.setattr(run_folder, "write_samples", lambda *given: None)
    monkeypatch.setattr(
        run_folder, "draw_curves", lambda log, picture: drawn.append(len(log.read_bytes())) or []
    )
    trained(tmp_path, [], samples=True, validate_every=1)
    assert len(drawn) == times
    assert drawn[-1] == (tmp_path / "run" / "log.jsonl").stat().st_size


def test_minutes_count_all_sessions_and_the_start_of_the_next_one_says_so(tmp_path):
    trained(tmp_path, [])
    notes = []

    def note(event):
        if type(event).__name__ == "Started":
            notes.extend(event.notes)

    recipe = TranslationTraining.of(tmp_path / "run", {"steps": 4, "minutes": 1e-9}, resume=True)
    result = recipe.prepare(tmp_path / "run").run(
        tmp_path / "run", resume=True, cpu=True, progress=note
    )
    assert (result.stopped, result.steps) == ("minutes", 3)
    said = r"\d+\.\d of 1e-09 minutes were used before; minutes count all sessions of a run, so give more to go on"
    assert [one for one in notes if re.fullmatch(said, one)], notes


def weights(run):
    return (run / read_checkpoints(run).last / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(("kind", "added"), [(TranslationTraining, 20), (LanguageModelTraining, 0)])
def test_a_training_goes_on_from_a_run_with_other_data_and_stops_and_resumes_to_the_same_bits(
    kind, added, tmp_path
):
    small = {"dim": 16, "heads": 2, "layers": 1, "vocab_size": 300}
    budget = {"batch_tokens": 256, "validate_every": 2, "schedule": "constant", "dropout": 0.1}
    lines = [f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90)]
    others = [f"the dog {n} ran off\tder Hund {n} rannte пёс\n" for n in range(60)]
    for name, rows in (("old.tsv", lines), ("new.tsv", others)):
        (tmp_path / name).write_text("".join(rows))
    base = tmp_path / "base"
    remarks = []

    def trained(run, steps, *, resume=False, **given):
        given = {
            "data": (str(tmp_path / "new.tsv"),),
            "from_run": str(base),
            "steps": steps,
            **budget,
            **given,
        }
        given = {"steps": steps} if resume else given
        recipe = kind.of(tmp_path / run, given, cpu=True, resume=resume, tell=remarks.append)
        return recipe, recipe.train(tmp_path / run, resume=resume, cpu=True)

    trained("base", 4, data=(str(tmp_path / "old.tsv"),), from_run=None, **small)
    with pytest.raises(
        UnsupportedError,
        match=r"\d+ characters of .*, such as 'п', 'ё', 'с', are in no piece .* --new",
    ):
        trained("whole", 4)
    with pytest.raises(
        ArgumentError, match="--new-pieces adds to the vocabulary of a run; name the run by --from"
    ):
        trained("x", 4, from_run=None, new_pieces=9)
    budget["new_pieces"] = added
    recipe, _ = trained("whole", 4)
    old, new = (load_with_tokeniser(one)[1] for one in (base, tmp_path / "whole"))
    assert old.vocab_size + bool(added) <= new.vocab_size <= old.vocab_size + added
    assert new.pieces(range(old.vocab_size)) == old.pieces(range(old.vocab_size))
    assert (recipe.config.learning_rate, recipe.config.dim, recipe.config.heads) == (3e-4, 16, 2)
    assert any("decides the model and its vocabulary" in one for one in remarks)
    trained("parts", 2)
    first = weights(tmp_path / "parts")
    learned = (base / "trained-pairs.hashes").read_bytes()
    shutil.rmtree(base)  # what it came from may be gone
    trained("parts", 4, resume=True)
    assert first != weights(tmp_path / "parts") == weights(tmp_path / "whole")
    after = (tmp_path / "parts/trained-pairs.hashes").read_bytes()
    hashes = {after[at : at + 8] for at in range(0, len(after), 8)}
    assert {learned[at : at + 8] for at in range(0, len(learned), 8)} < hashes
    with pytest.raises(ArgumentError, match=r"--from .*whole decides dim, size; leave that out"):
        kind.of(
            tmp_path / "x",
            {"data": ("a",), "from_run": str(tmp_path / "whole"), "dim": 32},
            size="tiny",
        )
    other = LanguageModelTraining if kind is TranslationTraining else TranslationTraining
    with pytest.raises(RegardError, match="is a run of another command than train"):
        other.of(tmp_path / "x", {"data": ("a",), "from_run": str(tmp_path / "whole")})


def test_a_run_knows_the_pairs_that_it_was_trained_on(tmp_path):
    trained(tmp_path, [])
    pairs = read_pairs(tmp_path / "pairs.tsv").pairs
    held_out = read_test(tmp_path / "run")
    assert count_trained(tmp_path / "run", pairs) == 32
    assert count_trained(tmp_path / "run", held_out) == 0
    assert count_trained(tmp_path, pairs) is None
    scores = evaluate_run(tmp_path / "run", [tmp_path / "pairs.tsv"])
    assert scores.to_dict()["trained_on"] == 32
    assert [line for line in scores.lines() if "32 of these pairs were trained on" in line]
    assert not [line for line in evaluate_run(tmp_path / "run").lines() if "trained on" in line]
    checkpoint = tmp_path / "run" / read_checkpoints(tmp_path / "run").last
    assert count_trained(checkpoint, pairs) == 32
    shutil.copytree(checkpoint, tmp_path / "elsewhere")
    unknown = evaluate_run(tmp_path / "elsewhere", [tmp_path / "pairs.tsv"])
    assert "  not known which pairs were trained on" in unknown.lines()
    file = tmp_path / "run" / "trained-pairs.hashes"
    file.write_bytes(file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=r"trained-pairs\.hashes does not match"):
        count_trained(tmp_path / "run", pairs)
