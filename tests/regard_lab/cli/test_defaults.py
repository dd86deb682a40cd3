"""Each setting has one default and one sentence, in one place: the Config of what it belongs to."""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NamedTuple

import pytest
from commanding import regard

import regard_lab as package
from regard.errors import ArgumentError
from regard_lab.cli.options import default_text, fields_in_order, sentence_of
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.models import LanguageConfig
from regard_lab.models.encoder import EncoderConfig
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.training import TrainingConfig
from regard_lab.training.comparison.study import Comparison
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    TranslationTraining,
)
from regard_lab.training.recipes.recipe import StackConfig

ROOT = Path(package.__file__).parent
COMMANDS = {
    "train translation": TranslationTraining.Config,
    "train language-model": LanguageModelTraining.Config,
    "train masked-words": MaskedWordsTraining.Config,
    "train classifier": ClassifierTraining.Config,
    "compare": Comparison.Config,
    "convert kv-heads": Uptraining.Config,
}
CONFIGS = {TrainingConfig, StackConfig, *COMMANDS.values()}
SETTINGS = {field.name for config in CONFIGS for field in fields(config) if field.metadata.get("is_option")}
# What trains, converts and compares. Other commands have options of the same names that mean other things.
SOURCES = [
    *ROOT.glob("training/**/*.py"), ROOT / "conversion/uptraining.py",
    *(ROOT / f"cli/{name}.py" for name in ("train", "demo", "evaluate", "options")),
]  # fmt: skip
# A model takes its sizes from the settings of its training, under these names where they differ.
MODELS = {
    TranslationTraining.Config: (TranslationConfig, RecurrentConfig),
    StackConfig: (LanguageConfig, EncoderConfig),
}
NAMES = {
    "attention": ("encoder_pattern", "pattern"), "decoder_attention": ("decoder_pattern",), "hidden": ("hidden_dim",),
    "cross_attention": ("cross_pattern",), "layers": ("layers", "encoder_layers"),
}  # fmt: skip


class Stated(NamedTuple):
    """A default that is written out: of which setting, which value, in which class or function."""

    name: str
    value: object
    place: str
    is_config: bool


def written(node: ast.expr | None) -> object:
    """The value of a literal, or of the literal that `setting` is given; MISSING for a reference, None and flags."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setting", "field"):
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "default")]
        node = given[0] if given else None
    try:
        value = MISSING if node is None else ast.literal_eval(node)
    except ValueError:
        return MISSING
    return MISSING if value is None or isinstance(value, bool) or value == () else value


def stated_in(text: str, where: str = "here") -> list[Stated]:
    """Every default of a setting that a source states, in a signature or in a class."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            own, place = node.args, f"{where}: {getattr(node, 'name', 'lambda')}"
            positional = [*own.posonlyargs, *own.args]
            pairs = [*zip(reversed(positional), reversed(own.defaults), strict=False),
                     *zip(own.kwonlyargs, own.kw_defaults, strict=True)]  # fmt: skip
            found += [Stated(name.arg, written(value), place, False) for name, value in pairs]
        elif isinstance(node, ast.ClassDef):
            assignments = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
            found += [
                Stated(ast.unparse(inner.target), written(inner.value), f"{where}: {node.name}", True)
                for inner in assignments
            ]
    return [one for one in found if one.name in SETTINGS and one.value is not MISSING]


def faults(stated: list[Stated]) -> list[str]:
    """A sentence for each default that stands in a signature, and for each that two Configs write out alike."""
    found = [f"{one.place} has {one.name}={one.value!r} in its signature" for one in stated if not one.is_config]
    first: dict[tuple[str, object], str] = {}
    for one in stated:
        if one.is_config and (before := first.setdefault((one.name, one.value), one.place)) != one.place:
            found.append(f"{one.place} and {before} both state {one.name}={one.value!r}; let one refer to the other")
    return found


def all_stated() -> list[Stated]:
    return [one for path in SOURCES for one in stated_in(path.read_text("utf-8"), str(path.relative_to(ROOT)))]


def test_no_default_is_stated_in_two_places_and_a_planted_one_is_seen():
    stated = all_stated()
    assert len({one.name for one in stated}) > 15  # the collector sees them
    assert not faults(stated), "\n".join(faults(stated))
    twice = "class A:\n dim: int = setting(9)\nclass B:\n dim: int = setting(default=9)"
    assert "both state dim=9" in faults(stated_in(twice))[0]
    assert "train has steps=500" in faults(stated_in("def train(*, steps: int = 500, cpu: bool = False): ..."))[0]
    assert not faults(stated_in("class A:\n steps: int = 400\nclass B:\n steps: int = setting(A.steps)"))


@pytest.mark.parametrize(("config", "models"), MODELS.items(), ids=lambda one: getattr(one, "__qualname__", ""))
def test_a_default_that_is_the_models_own_refers_to_it(config, models):
    of_model = {
        (field.name, field.default) for model in models for field in fields(model) if field.default is not MISSING
    }
    classes = {kind.__name__ for kind in config.__mro__}
    files = {"training/recipes/recipe.py", "training/recipes/translation.py", "training/config.py"}
    copies = [
        one
        for one in all_stated()
        if one.is_config and one.place.rpartition(" ")[2] in classes and one.place.partition(":")[0] in files
        if any((name, one.value) in of_model for name in NAMES.get(one.name, (one.name,)))
    ]
    assert not copies


def squeezed(text: str) -> str:
    """A text without its spaces, which a terminal puts anywhere."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_is_an_option_with_its_sentence_and_its_default(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = squeezed(regard(*command.split(), "--help").out)
    config = COMMANDS[command]
    variants = TranslationTraining.VARIANTS if command == "train translation" else {}
    for field in fields_in_order(config):
        name = field.metadata.get("option", f"--{field.name.replace('_', '-')}").split("/")[0]
        assert name in text, name
        assert squeezed(f"{sentence_of(config, field.name)} {default_text(field, variants)}") in text, name
    for own in variants.values():
        assert all(getattr(config, name) != value for name, value in own.items())
    with pytest.raises(LookupError, match="write one under Args"):
        sentence_of(config, "speed")


def test_no_command_writes_a_default_into_its_help():
    for path in ROOT.glob("cli/*.py"):
        assert not re.search(r"\[default: ['\"]?-?[\d.]+['\"]?[\];]", path.read_text("utf-8")), path.name


CHECKED = (
    "steps", "warmup_steps", "weight_decay", "accumulate", "validate_every", "patience", "keep", "seed",
    "skip_non_finite", "heads", "kv_heads", "layers",
)  # fmt: skip


@pytest.mark.parametrize("config", [one for name, one in COMMANDS.items() if name.startswith("train ")])
def test_the_least_number_of_an_option_is_the_least_that_python_takes(config):
    for field in fields(config):
        if field.name not in CHECKED:
            continue
        least = field.metadata["least"]

        def configs(number, name=field.name):
            made = config(data=("pairs.tsv",), **{name: number})
            return made.training_config(), made.model_config(300)

        assert configs(least)
        with pytest.raises(ArgumentError, match=rf"{field.name} is {least - 1}; "):
            configs(least - 1)
