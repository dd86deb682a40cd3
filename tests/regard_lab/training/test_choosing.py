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


def chosen_by(recipe, given=None, amount=PAIRS, size=None):
    given = {"data": ("data.tsv",), **(given or {})}
    return recipe(recipe.new_config(given)).choose(amount, Requested(given, size, cpu=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_help_says_chosen_of_every_setting_that_is_chosen_and_of_no_other(recipe):
    of_budgets = [chosen_by(recipe, budget) for budget in ({}, {"minutes": 10.0}, {"steps": 900})]
    chosen = {name for choice in of_budgets for name in choice.settings}
    shown = {field.name for field in fields(recipe.Config) if field.metadata.get("shown") == CHOSEN}
    assert chosen == shown


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_given_wins(recipe):
    for name, value in chosen_by(recipe, {"minutes": 10.0}).settings.items():
        if value is not None:
            assert name not in chosen_by(recipe, {"minutes": 10.0, name: value}).settings


def test_sizes_and_vocabularies_grow_with_the_data_and_sizes_with_the_budget():
    counts = [10**power for power in range(3, 11)]
    for grown in (
        [SIZES.index(fitting_size(count)) for count in counts],
        [SIZES.index(fitting_size(10**10, minutes=minutes)) for minutes in (0.5, 5, 50, 500)],
        [SIZES.index(fitting_size(10**10, steps=steps)) for steps in (10, 1_000, 100_000)],
        [fitting_vocabulary(count) for count in counts],
    ):
        assert grown == sorted(grown)
        assert len(set(grown)) >= 3
    slow, fast = (
        choose(TRANSFORMER, Amount(10**7, 10**10), budget, {})
        for budget in (TEN_MINUTES, TEN_MINUTES._replace(accelerated=True))
    )
    assert (slow.settings["dim"], fast.settings["dim"]) == (128, 256)


def test_each_budget_has_its_end():
    by_steps = choose(TRANSFORMER, PAIRS, TrainingBudget(steps=900), {"steps": 900}).settings
    assert (by_steps["warmup_steps"], by_steps["cooldown"]) == (90, pytest.approx(0.6))
    by_minutes = choose(TRANSFORMER, PAIRS, TEN_MINUTES, {"minutes": 10.0}).settings
    assert by_minutes["steps"] is None
    assert "validate_every" in by_minutes
    unasked = choose(TRANSFORMER, PAIRS, TrainingBudget(), {})
    assert (unasked.settings["steps"], unasked.settings["minutes"]) == (None, 10.0)
    assert "10 minutes (no budget was given: --minutes, --steps or --patience)" in unasked.reason
    by_itself = choose(TRANSFORMER, PAIRS, TrainingBudget(patience=3), {"patience": 3})
    assert by_itself.settings["steps"] is None
    assert "minutes" not in by_itself.settings
    # an epoch: 700,000 characters a side, 3 an id, 1,000 a batch
    assert by_itself.settings["validate_every"] == 233
    assert "as long as validation improves" in by_itself.reason


def test_nothing_is_dropped_or_smoothed_where_each_text_is_read_a_few_times():
    many = Amount(60_000, 8_400_000, "pairs", sides=2)
    for given, amount, expected in (
        ({"minutes": 10.0}, many, (0.0, 0.0)),
        ({"minutes": 60.0}, many, (0.1, 0.1)),
        ({"minutes": 10.0}, PAIRS, (0.1, 0.1)),
        ({"steps": 300}, PAIRS, (0.0, 0.0)),
        ({}, many, (0.0, 0.0)),
        ({"patience": 3}, many, (0.1, 0.1)),
    ):
        found = chosen_by(TranslationTraining, given, amount).settings
        assert (found["dropout"], found["label_smoothing"]) == expected
    assert (
        chosen_by(TranslationTraining, {"minutes": 10.0}, Amount(200, 12_000, "pairs", 2)).settings[
            "dropout"
        ]
        == 0.3
    )


def test_a_new_run_chooses_tells_it_in_one_line_and_keeps_it_when_it_goes_on(tmp_path):
    said = []
    (tmp_path / "text.txt").write_text("the bird sang in the street\n" * 200)
    given = {"data": (str(tmp_path / "text.txt"),), "steps": 2, "dim": 16, "schedule": "constant"}
    recipe = LanguageModelTraining.of(tmp_path / "run", given, cpu=True, tell=said.append)
    recipe.train(tmp_path / "run", cpu=True)
    [line] = [line for line in said if line.startswith("chosen for 1 text (")]
    assert "\n" not in line
    kept = read_settings(tmp_path / "run")
    assert (kept["dim"], kept["heads"], kept["vocab_size"], kept["batch_tokens"]) == (
        16,
        4,
        500,
        1_024,
    )
    said.clear()
    again = LanguageModelTraining.of(
        tmp_path / "run", {"steps": 3}, resume=True, cpu=True, tell=said.append
    )
    again.prepare(tmp_path / "run")
    assert not [line for line in said if line.startswith("chosen")]
    assert again.config.dim == 16
    with pytest.raises(
        ArgumentError, match=r"the sizes of the run in .* are decided; leave --size out"
    ):
        LanguageModelTraining.of(tmp_path / "run", {}, size="tiny", resume=True)


def test_a_batch_holds_four_of_the_longest_rows():
    for recipe, name in (
        (LanguageModelTraining, "block"),
        (MaskedWordsTraining, "longest"),
        (ClassifierTraining, "longest"),
    ):
        assert chosen_by(recipe, {name: 3_000}).settings["batch_tokens"] == 12_000
        assert chosen_by(recipe, {name: 16}).settings["batch_tokens"] == 1_000


def test_an_encoder_that_comes_from_a_run_keeps_its_sizes_and_gets_a_low_rate():
    found = chosen_by(ClassifierTraining, {"from_run": "run", "minutes": 5.0}).settings
    assert not {"dim", "layers", "heads", "vocab_size"} & found.keys()
    assert found["learning_rate"] == ClassifierTraining.Config.learning_rate
    with pytest.raises(ArgumentError, match="--from run decides dim, size"):
        ClassifierTraining.refuse_those_of("run", {"dim": 8, "learning_rate": 0.1}, "tiny")
