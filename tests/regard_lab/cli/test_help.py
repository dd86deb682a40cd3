"""The help of every command answers without torch, and says what the command says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.main import get_command

from docs.making.command_help import is_help_fresh, loaded_commands
from regard_lab.cli.app import Convert, TopLevel, Train, Unloaded, app, kept_help

COMMANDS = [
    *([name] for name in TopLevel.SENTENCES),
    *(["train", name] for name in Train.SENTENCES),
    *(["convert", name] for name in Convert.SENTENCES),
]

# All in one process: torch stays in `sys.modules` once it is imported, so the first command that imports it fails.
ASK = """
import contextlib, io, json, sys
from regard_lab.cli.app import app
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        app([*words, "--help"], prog_name="regard")
    print(json.dumps([" ".join(words), said.getvalue(), [name for name in ("torch", "numpy") if name in sys.modules]]))
"""


def answers(commands):
    """The words, the help and the heavy modules that are imported then, of each command in turn."""
    done = subprocess.run([sys.executable, "-c", ASK, json.dumps(commands)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_help_of_every_command_answers_without_torch():
    answered = answers(COMMANDS)
    assert len(answered) == len(COMMANDS)
    for words, said, heavy in answered:
        assert said.startswith(f"Usage: regard {words} [OPTIONS]"), words
        assert not heavy, f"`regard {words} --help` has imported {', '.join(heavy)}"


def test_help_after_arguments_answers_without_torch():
    ((_, said, heavy),) = answers([["translate", "RUN", "a sentence"]])
    assert said.startswith("Usage: regard translate [OPTIONS]")
    assert not heavy


def test_the_kept_help_is_that_of_the_commands():
    assert is_help_fresh(), "a command has changed; make figures, and read what changed in regard_lab/cli/help.json"


@pytest.mark.parametrize("width", [60, 80])
def test_kept_help_is_shown_like_that_of_the_command(width):
    group = get_command(app)
    ctx = group.context_class(group, info_name="regard", terminal_width=width, **group.context_settings)
    for source, command, inner in loaded_commands(group, ctx):
        kept = Unloaded(command.name, source)
        assert kept.get_help(kept.context_class(kept, info_name=inner.info_name, parent=inner.parent)) == (
            command.get_help(inner)
        )


def test_help_after_options_is_that_of_the_command():
    (first, second) = (said for _, said, _ in answers([["show"], ["show", "causal", "--length", "8"]]))
    assert first == second


def rows_of_help():
    return [
        (place, name, sentence)
        for place, parts in kept_help().items()
        for title in ("Arguments", "Options")
        for name, sentence in parts[title].items()
    ]


def test_the_help_names_values_and_not_types_of_python():
    for place, name, _ in rows_of_help():
        assert not re.search(r"<|\bstr\b|\bint\b", name), (place, name)


def test_no_sentence_of_the_help_asks_for_a_value_that_cannot_be_typed_or_lacks_its_subject():
    for place, name, sentence in rows_of_help():
        assert "None" not in sentence, (place, name)
        assert not re.match(r"Of |How weights|Where the |What follows", sentence), (place, name)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("train.translation", "--norm pre|post"),
        ("train.translation", "--reach global|local-m|local-p"),
        ("train.translation", "--precision float32|bfloat16"),
        ("translate.translate", "--normalisation none|average|gnmt"),
        ("train.translation", "--steps N"),
        ("translate.translate", "RUN"),
    ],
)
def test_the_help_shows_the_choices_of_an_option(place, name):
    assert {**kept_help()[place]["Arguments"], **kept_help()[place]["Options"]}[name]
