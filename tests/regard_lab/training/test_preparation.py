"""A run that an earlier version began goes on as it was begun; a run that hardly learned says so."""

import math

import pytest

from regard_lab.decoding import Translator
from regard_lab.training.recipes import (
    ClassifierTraining,
    TranslationTraining,
    classification,
    translation,
)
from regard_lab.training.recipes.evaluation import evaluate_run
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.run_folder import LearnedLoss

SMALL = {"dim": 16, "heads": 2, "layers": 1, "vocab_size": 300, "batch_tokens": 512}
SMALL |= {"validate_every": 1, "schedule": "constant", "warmup_steps": 0}
OLD = Preparation(keep_invisible=True, store_symbols=False)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = [f"the ani\u00admal {n} 🎉 sang\tdas Tier {n} sang\n" for n in range(70)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def train(recipe, run, data, **changes):
    """Train for a step, or as given."""
    settings = {"data": (str(data),), "steps": 1, **SMALL, **changes}
    recipe.of(run, settings, cpu=True).train(run)


@pytest.mark.parametrize("recipe", [TranslationTraining, ClassifierTraining])
def test_a_run_of_an_earlier_version_goes_on_with_its_own_preparation(
    recipe, pairs, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    if recipe is ClassifierTraining:
        pairs = tmp_path / "labels.tsv"
        lines = [f"{'odd' if n % 2 else 'even'}\tthe ani\u00admal {n} 🎉\n" for n in range(70)]
        pairs.write_text("".join(lines), encoding="utf-8")
    module = translation if recipe is TranslationTraining else classification
    with monkeypatch.context() as patch:
        patch.setattr(module, "Preparation", _Earlier)
        train(recipe, run, pairs)
    before = Preparation.of(run)
    recipe.of(run, {"steps": 2}, resume=True, cpu=True).train(run, resume=True)
    assert (before, Preparation.of(run)) == (OLD, OLD)
    assert Preparation.of(tmp_path) == Preparation(keep_invisible=False, store_symbols=True)


class _Earlier:
    """What an earlier version did."""

    @staticmethod
    def of(begun):
        return OLD


def test_a_translator_names_unknown_symbols_and_reads_soft_hyphens_as_nothing(pairs, tmp_path):
    for kind in ("bpe", "character", "byte"):
        run = tmp_path / kind
        train(TranslationTraining, run, pairs, tokeniser=kind)
        lines = ["the animal 🎉 sang 🚀", "the anim\u00adal", "the animal"]
        symbols, hyphen, plain = Translator.load(run).translate(lines)
        assert symbols.unknown_words == ("🚀",)
        assert hyphen.unknown_words == ()
        assert hyphen.source_ids == plain.source_ids


def test_symbols_of_an_earlier_run_are_those_of_its_vocabulary(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(translation, "Preparation", _Earlier)
    unknown = {}
    for kind in ("bpe", "byte"):
        run = tmp_path / kind
        train(TranslationTraining, run, pairs, tokeniser=kind)
        unknown[kind] = Translator.load(run).translate(["the 🎉 sang 🚀"])[0].unknown_words
    assert unknown == {"bpe": ("🚀",), "byte": ()}


def test_a_run_that_hardly_learned_says_so_and_one_that_learned_does_not(pairs, tmp_path):
    run = tmp_path / "run"
    train(TranslationTraining, run, pairs)
    learned = LearnedLoss.of_run(run)
    size = Translator.load(run).tokeniser.vocab_size
    assert learned.guess == pytest.approx(math.log(size))
    assert learned.hardly
    scores = evaluate_run(run)
    assert scores.to_dict()["hardly_learned"] is True
    assert learned.remark() in "\n".join(scores.lines())
    assert LearnedLoss.of_run(next(run.glob("step-*"))) is None

    good = tmp_path / "good"
    train(TranslationTraining, good, pairs, steps=60, learning_rate=0.01, validate_every=30)
    scores = evaluate_run(good)
    assert scores.to_dict()["hardly_learned"] is False
    assert "hardly" not in "\n".join(scores.lines())
    assert LearnedLoss(0.61, 1.0).hardly
    assert not LearnedLoss(0.6, 1.0).hardly
