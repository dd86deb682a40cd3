"""Recipes from Python: settings of a new run and of one that goes on."""

import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.storage.files import replace_file
from regard.storage.sealed_json import render_sealed
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import read_pairs
from regard_lab.text.remarks import silent
from regard_lab.training import Started
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    Recipe,
    TranslationTraining,
    run_folder,
)
from regard_lab.training.recipes.evaluation import evaluate_run
from regard_lab.training.recipes.run_folder import count_trained, read_test
from regard_lab.training.recipes.translation import remark_on_placeholders

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
    "batches_per_step": 1,
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


RECIPES = (TranslationTraining, LanguageModelTraining, MaskedWordsTraining, ClassifierTraining)


def store_settings(run, **more):
    content = render_sealed({"settings": OLD | more})
    replace_file(run / "settings.json", content)


@pytest.fixture
def old_run(tmp_path):
    store_settings(tmp_path, parallel="ddp")
    return tmp_path


def test_the_settings_of_an_older_version_load_and_train_the_same(old_run):
    config = TranslationTraining.of(old_run, {}, resume=True).config
    for name, value in OLD.items():
        loaded = getattr(config, name)
        assert (list(loaded) if isinstance(loaded, tuple) else loaded) == value, name

    settings = config.training_config().to_dict()
    expected = {name: value for name, value in OLD.items() if name in settings}
    assert settings == {
        **expected,
        "betas": [0.9, 0.98],
        "epsilon": 1e-9,
        "gradient_clip": 1.0,
        "log_every": 10,
        "save_every": 2,
        "cooldown": 0.0,
    }


def test_only_what_may_change_is_changed_by_a_run_that_goes_on(old_run):
    recipe = TranslationTraining.of(old_run, {"steps": 9, "keep": 3}, resume=True)
    assert (recipe.config.steps, recipe.config.keep) == (9, 3)
    with pytest.raises(ArgumentError, match=r"begun with other settings \(dim 16 -> 32\)"):
        TranslationTraining.of(old_run, {"dim": 32}, resume=True)
    with pytest.raises(ArgumentError, match="a run of another command"):
        LanguageModelTraining.of(old_run, {}, resume=True)


def test_a_run_with_a_setting_that_is_gone_is_started_from_and_never_gone_on_with(tmp_path):
    store_settings(tmp_path, parallel="fsdp")
    assert TranslationTraining.settings_from(str(tmp_path))["dim"] == 16
    gone = "by an earlier version, with the setting parallel, which is gone; begin"
    with pytest.raises(ArgumentError, match=gone):
        TranslationTraining.of(tmp_path, {}, resume=True)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_new_run_needs_data(recipe, tmp_path):
    missing = f"--data is missing: name {recipe.DATA[:12]}"
    with pytest.raises(ArgumentError, match=f"^{missing}"):
        recipe.of(tmp_path / "run", {})
    no_run = r"^there is no training run in .* to resume; to begin one, "
    with pytest.raises(ArgumentError, match=f"{no_run}{missing}"):
        recipe.of(tmp_path / "run", {}, resume=True)


def test_a_new_run_needs_a_folder_of_its_own(tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"diary\.txt"):
        TranslationTraining.of(tmp_path, {"data": ["pairs.tsv"]})


def test_resuming_where_no_run_is_says_so(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a bird sang\n")
    run = tmp_path / "run"
    remarks = []
    LanguageModelTraining.of(run, {"data": [text]}, resume=True, tell=remarks.append)
    assert remarks == [f"there is no training run in {run} to resume; a new one begins"]


SMALL = {"dim": 16, "heads": 2, "layers": 1, "steps": 3, "batch_tokens": 256}


FEW_WORDS = "".join(f"number {n}\tNummer {n}\n" for n in range(40))


def train_small(folder, remarks=None, samples=False, pairs=FEW_WORDS, **changes):
    """A translator on forty pairs of few words; what it tells goes into `remarks`."""
    table = folder / "pairs.tsv"
    table.write_text(pairs)
    settings = {"data": [str(table)], **SMALL, **changes}
    tell = silent if remarks is None else remarks.append
    recipe = TranslationTraining.of(folder / "run", settings, tell=tell)
    return recipe.prepare().run(folder / "run", cpu=True, samples=samples)


def test_too_little_to_learn_from_is_told_and_so_is_a_smaller_vocabulary_than_allowed(tmp_path):
    remarks = []
    train_small(tmp_path, remarks)
    told = "\n".join(remarks)
    assert re.search("^there is too little to learn from: 32 pairs of ", told, re.MULTILINE), told
    assert "(of at most 500; those that occur only inside longer ones are dropped)" in told
    assert "vocabulary up to 500" in told


PLAIN = ["number one"] * 19


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        (["open %s", *PLAIN], "5 % of the sources have placeholders such as '%s'"),
        (
            ["see <b>it</b>", "a <b>b</b>", *PLAIN],
            "10 % of the sources have placeholders such as '<b>'",
        ),
        (["open %s", *PLAIN, *PLAIN], None),
        # a number is translated like a word, and breaks no program
        (["12 of 13 🎉", *PLAIN], None),
        # more than are looked at, and every third alike
        (["open %s", "close", "end"] * 2_003, "34 % of the sources have placeholders such as '%s'"),
        ([], None),
    ],
)
def test_sources_with_placeholders_are_told_where_a_twentieth_has_some(sources, told):
    remark = remark_on_placeholders(sources)
    assert remark == told or (told is not None and remark is not None and remark.startswith(told))


@pytest.mark.parametrize(("changes", "times"), [({}, 1), ({"protect": True}, 0)])
def test_only_a_new_run_without_protection_is_told_of_placeholders(tmp_path, changes, times):
    remarks = []
    pairs = "".join(f"number {n} of %s\tNummer {n} von %s\n" for n in range(40))
    train_small(tmp_path, remarks, pairs=pairs, **changes)
    recipe = TranslationTraining.of(
        tmp_path / "run", {"steps": 4}, resume=True, tell=remarks.append
    )
    recipe.prepare(tmp_path / "run")
    assert "\n".join(remarks).count("a model without --protect") == times


@pytest.mark.parametrize(("seconds", "times"), [(run_folder.DRAW_EVERY, 1), (0.0, 4)])
def test_curves_are_drawn_after_the_last_step_and_before_it_only_where_the_last_are_old(
    tmp_path, monkeypatch, seconds, times
):
    lengths = []

    def draw(log, picture):
        lengths.append(log.stat().st_size)
        return []

    monkeypatch.setattr(run_folder, "DRAW_EVERY", seconds)
    monkeypatch.setattr(run_folder, "draw_curves", draw)
    # the pictures of samples take seconds
    monkeypatch.setattr(run_folder, "write_samples", lambda *arguments: None)
    train_small(tmp_path, samples=True, validate_every=1)
    assert len(lengths) == times
    assert lengths[-1] == (tmp_path / "run" / "log.jsonl").stat().st_size


def test_minutes_count_all_sessions_and_the_start_of_the_next_one_says_so(tmp_path):
    train_small(tmp_path)
    run = tmp_path / "run"
    notes = []

    def note(event):
        if isinstance(event, Started):
            notes.extend(event.notes)

    recipe = TranslationTraining.of(run, {"steps": 4, "minutes": 1e-9}, resume=True)
    result = recipe.prepare(run).run(run, resume=True, cpu=True, progress=note)
    assert (result.stopped, result.steps) == ("minutes", 3)
    said = r"\d+\.\d of 1e-09 minutes were used before; minutes count all sessions of a run, so give more to go on"
    assert any(re.fullmatch(said, remark) for remark in notes), notes


# --- starting from a run


@dataclass(frozen=True)
class Heirs:
    """Trainings that start from a run with other data, among them letters that it never read."""

    kind: type[Recipe]
    folder: Path
    new_pieces: int
    remarks: list[str] = field(default_factory=list)

    @property
    def source(self):
        return self.folder / "source"

    def recipe(self, name, *, resume=False, size=None, **settings):
        tell = self.remarks.append
        return self.kind.of(
            self.folder / name, settings, size=size, cpu=True, resume=resume, tell=tell
        )

    def begin(self, name, steps, **settings):
        """Train from the source for so many steps."""
        data = (str(self.folder / "new.tsv"),)
        settings = {
            "data": data,
            "from_run": str(self.source),
            "steps": steps,
            **BUDGET,
            **settings,
        }
        recipe = self.recipe(name, **settings)
        recipe.train(self.folder / name, cpu=True)
        return recipe

    def resume(self, name, steps):
        recipe = self.recipe(name, resume=True, steps=steps)
        recipe.train(self.folder / name, resume=True, cpu=True)

    def vocabulary(self, name):
        return load_with_tokeniser(self.folder / name)[1]

    def weights(self, name):
        run = self.folder / name
        return (run / read_checkpoints(run).last / "weights.safetensors").read_bytes()

    def learned_hashes(self, name):
        content = (self.folder / name / "trained-pairs.hashes").read_bytes()
        return {content[start : start + 8] for start in range(0, len(content), 8)}


BUDGET = {"batch_tokens": 256, "validate_every": 2, "schedule": "constant", "dropout": 0.1}


@pytest.fixture(scope="module", params=[(TranslationTraining, 20), (LanguageModelTraining, 0)])
def first_heirs(request, tmp_path_factory):
    """A source that was trained on its own lines, and other lines to learn from."""
    folder = tmp_path_factory.mktemp("heirs")
    old = [f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90)]
    new = [f"the dog {n} ran off\tder Hund {n} rannte пёс\n" for n in range(60)]
    (folder / "old.tsv").write_text("".join(old))
    (folder / "new.tsv").write_text("".join(new))
    kind, new_pieces = request.param
    heirs = Heirs(kind, folder, new_pieces)
    sizes = {"dim": 16, "heads": 2, "layers": 1, "vocab_size": 300}
    data = (str(folder / "old.tsv"),)
    recipe = heirs.recipe("source", data=data, steps=4, **BUDGET, **sizes)
    recipe.train(heirs.source, cpu=True)
    return heirs


@pytest.fixture
def heirs(first_heirs, tmp_path):
    """A copy of them, in which a test may change everything."""
    shutil.copytree(first_heirs.folder, tmp_path, dirs_exist_ok=True)
    return replace(first_heirs, folder=tmp_path, remarks=[])


def test_a_training_from_a_run_takes_its_sizes_and_its_vocabulary_and_has_a_low_rate(heirs):
    config = heirs.begin("heir", 1, new_pieces=heirs.new_pieces).config
    assert (config.learning_rate, config.dim, config.heads) == (3e-4, 16, 2)
    assert any("decides the model and its vocabulary" in remark for remark in heirs.remarks)
    old = heirs.vocabulary("source")
    new = heirs.vocabulary("heir")
    least = old.vocab_size + bool(heirs.new_pieces)
    assert least <= new.vocab_size <= old.vocab_size + heirs.new_pieces
    assert new.pieces(range(old.vocab_size)) == old.pieces(range(old.vocab_size))


def test_a_training_from_a_run_that_is_gone_stops_and_resumes_to_the_same_bits(heirs):
    heirs.begin("whole", 4, new_pieces=heirs.new_pieces)
    heirs.begin("parts", 2, new_pieces=heirs.new_pieces)
    before = heirs.weights("parts")
    learned = heirs.learned_hashes("source")
    shutil.rmtree(heirs.source)
    heirs.resume("parts", 4)
    assert before != heirs.weights("parts") == heirs.weights("whole")
    assert learned < heirs.learned_hashes("parts")


def test_a_training_from_a_run_is_refused_what_the_run_decides_and_letters_in_no_piece(heirs):
    foreign = r"\d+ characters of .*, such as 'п', 'ё', 'с', are in no piece .* --new"
    with pytest.raises(UnsupportedError, match=foreign):
        heirs.begin("heir", 4)
    alone = "--new-pieces adds to the vocabulary of a run; name the run by --from"
    with pytest.raises(ArgumentError, match=alone):
        heirs.recipe("heir", data=("a",), new_pieces=9)
    decided = r"--from .*source decides dim, size; leave that out"
    source = str(heirs.source)
    with pytest.raises(ArgumentError, match=decided):
        heirs.recipe("heir", data=("a",), from_run=source, dim=32, size="tiny")

    is_translator = heirs.kind is TranslationTraining
    other_recipe = LanguageModelTraining if is_translator else TranslationTraining
    with pytest.raises(RegardError, match="is a run of another command than train"):
        other_recipe.of(heirs.folder / "heir", {"data": ("a",), "from_run": source})


# --- what a run knows afterwards


def test_a_run_knows_the_pairs_that_it_was_trained_on(tmp_path):
    train_small(tmp_path)
    run = tmp_path / "run"
    table = tmp_path / "pairs.tsv"
    pairs = read_pairs(table).pairs
    assert count_trained(run, pairs) == 32
    assert count_trained(run, read_test(run)) == 0
    assert count_trained(tmp_path, pairs) is None
    scores = evaluate_run(run, [table])
    assert scores.to_dict()["trained_on"] == 32
    assert any("32 of these pairs were trained on" in line for line in scores.lines())
    assert not any("trained on" in line for line in evaluate_run(run).lines())

    checkpoint = run / read_checkpoints(run).last
    assert count_trained(checkpoint, pairs) == 32
    shutil.copytree(checkpoint, tmp_path / "elsewhere")
    lines = evaluate_run(tmp_path / "elsewhere", [table]).lines()
    assert "  not known which pairs were trained on" in lines

    file = run / "trained-pairs.hashes"
    file.write_bytes(file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=r"trained-pairs\.hashes does not match"):
        count_trained(run, pairs)
