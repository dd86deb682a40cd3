"""Settings that were not given follow from the amount of data and the budget; what was given stays."""

from dataclasses import fields

import pytest

from regard.errors import ArgumentError
from regard_lab.training.config import CHOSEN
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    TranslationTraining,
    read_settings,
)
from regard_lab.training.recipes.choosing import (
    SIZES,
    TRANSFORMER,
    Amount,
    TrainingBudget,
    choose,
    fitting_size,
    fitting_vocabulary,
)
from regard_lab.training.recipes.recipe import Requested

PAIRS = Amount(18_000, 1_400_000, "pairs", sides=2)
TEN_MINUTES = TrainingBudget(minutes=10.0)
RECIPES = (TranslationTraining, LanguageModelTraining, MaskedWordsTraining, ClassifierTraining)


def chosen_by(recipe, amount=PAIRS, **settings):
    """What a recipe chooses beside the settings that are given."""
    settings["data"] = ("data.tsv",)
    choice = recipe(recipe.new_config(settings)).choose(amount, Requested(settings, cpu=True))
    return choice.settings


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_help_says_chosen_of_every_setting_that_is_chosen_and_of_no_other(recipe):
    chosen = {
        **chosen_by(recipe),
        **chosen_by(recipe, minutes=10.0),
        **chosen_by(recipe, steps=900),
    }
    shown = {field.name for field in fields(recipe.Config) if field.metadata.get("shown") == CHOSEN}
    assert chosen.keys() == shown


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_given_wins(recipe):
    for name, value in chosen_by(recipe, minutes=10.0).items():
        if value is not None:
            assert name not in chosen_by(recipe, minutes=10.0, **{name: value})


def grows(values):
    return values == sorted(values) and len(set(values)) >= 3


def test_sizes_and_vocabularies_grow_with_the_data_and_sizes_with_the_budget():
    counts = [10**power for power in range(3, 11)]
    most = counts[-1]
    assert grows([fitting_vocabulary(count) for count in counts])
    for sizes in (
        [fitting_size(count) for count in counts],
        [fitting_size(most, minutes=minutes) for minutes in (0.5, 5, 50, 500)],
        [fitting_size(most, steps=steps) for steps in (10, 1_000, 100_000)],
    ):
        assert grows(list(map(SIZES.index, sizes)))


def test_a_minute_of_an_accelerator_is_worth_a_larger_model():
    amount = Amount(10**7, 10**10)
    slow = choose(TRANSFORMER, amount, TEN_MINUTES, {})
    fast = choose(TRANSFORMER, amount, TEN_MINUTES._replace(accelerated=True), {})
    assert (slow.settings["dim"], fast.settings["dim"]) == (128, 256)


def test_a_number_of_steps_has_a_warm_up_of_a_tenth_and_a_cooldown():
    settings = choose(TRANSFORMER, PAIRS, TrainingBudget(steps=900), {"steps": 900}).settings
    assert (settings["warmup_steps"], settings["cooldown"]) == (90, pytest.approx(0.6))


def test_minutes_end_a_training_without_a_number_of_steps_and_are_chosen_where_no_budget_is():
    settings = choose(TRANSFORMER, PAIRS, TEN_MINUTES, {"minutes": 10.0}).settings
    assert settings["steps"] is None
    assert "validate_every" in settings
    unasked = choose(TRANSFORMER, PAIRS, TrainingBudget(), {})
    assert (unasked.settings["steps"], unasked.settings["minutes"]) == (None, 10.0)
    assert "10 minutes (no budget was given: --minutes, --steps or --patience)" in unasked.reason


def test_patience_alone_validates_after_each_epoch_and_has_no_end():
    choice = choose(TRANSFORMER, PAIRS, TrainingBudget(patience=3), {"patience": 3})
    assert choice.settings["steps"] is None
    assert "minutes" not in choice.settings
    # an epoch: 700,000 characters a side, 3 an id, 1,000 a batch
    assert choice.settings["validate_every"] == 233
    assert "as long as validation improves" in choice.reason


MANY_PAIRS = Amount(60_000, 8_400_000, "pairs", sides=2)
FEW_PAIRS = Amount(200, 12_000, "pairs", sides=2)


@pytest.mark.parametrize(
    ("amount", "budget", "dropout", "smoothing"),
    [
        (MANY_PAIRS, {"minutes": 10.0}, 0.0, 0.0),
        (MANY_PAIRS, {"minutes": 60.0}, 0.1, 0.1),
        (MANY_PAIRS, {}, 0.0, 0.0),
        (MANY_PAIRS, {"patience": 3}, 0.1, 0.1),
        (PAIRS, {"minutes": 10.0}, 0.1, 0.1),
        (PAIRS, {"steps": 300}, 0.0, 0.0),
        (FEW_PAIRS, {"minutes": 10.0}, 0.3, 0.1),
    ],
)
def test_nothing_is_dropped_or_smoothed_where_each_text_is_read_a_few_times(
    amount, budget, dropout, smoothing
):
    settings = chosen_by(TranslationTraining, amount, **budget)
    assert (settings["dropout"], settings["label_smoothing"]) == (dropout, smoothing)


def test_a_new_run_chooses_tells_it_in_one_line_and_keeps_it_when_it_goes_on(tmp_path):
    run = tmp_path / "run"
    text = tmp_path / "text.txt"
    text.write_text("the bird sang in the street\n" * 200)
    remarks = []

    def of(size=None, resume=False, **settings):
        return LanguageModelTraining.of(
            run, settings, size=size, resume=resume, cpu=True, tell=remarks.append
        )

    recipe = of(data=(str(text),), steps=2, dim=16, schedule="constant")
    recipe.train(run, cpu=True)
    [line] = [remark for remark in remarks if remark.startswith("chosen for 1 text (")]
    assert "\n" not in line
    chosen = {"dim": 16, "heads": 4, "vocab_size": 500, "batch_tokens": 1_024}
    assert chosen.items() <= read_settings(run).items()

    remarks.clear()
    again = of(steps=3, resume=True)
    again.prepare(run)
    assert not any(remark.startswith("chosen") for remark in remarks)
    assert again.config.dim == 16
    decided = r"the sizes of the run in .* are decided; leave --size out"
    with pytest.raises(ArgumentError, match=decided):
        of(size="tiny", resume=True)


@pytest.mark.parametrize(
    ("recipe", "row"),
    [
        (LanguageModelTraining, "block"),
        (MaskedWordsTraining, "longest"),
        (ClassifierTraining, "longest"),
    ],
)
def test_a_batch_holds_four_of_the_longest_rows(recipe, row):
    assert chosen_by(recipe, **{row: 3_000})["batch_tokens"] == 12_000
    assert chosen_by(recipe, **{row: 16})["batch_tokens"] == 1_000


def test_an_encoder_that_comes_from_a_run_keeps_its_sizes_and_gets_a_low_rate():
    settings = chosen_by(ClassifierTraining, from_run="run", minutes=5.0)
    assert not {"dim", "layers", "heads", "vocab_size"} & settings.keys()
    assert settings["learning_rate"] == ClassifierTraining.Config.learning_rate
    with pytest.raises(ArgumentError, match="--from run decides dim, size"):
        ClassifierTraining.check_left_to_source("run", {"dim": 8, "learning_rate": 0.1}, "tiny")
