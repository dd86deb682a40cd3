"""Each setting is an option whose sentence, default and least number are those of the Config it belongs to."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from commanding import regard

import regard_lab as package
from regard.errors import ArgumentError
from regard_lab.cli.options import default_text, fields_in_order, sentence_of
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    TranslationTraining,
)

ROOT = Path(package.__file__).parent
COMMANDS = {
    "train translation": TranslationTraining.Config,
    "train language-model": LanguageModelTraining.Config,
    "train masked-words": MaskedWordsTraining.Config,
    "train classifier": ClassifierTraining.Config,
    "convert kv-heads": Uptraining.Config,
}


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
    "heads", "kv_heads", "layers",
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
