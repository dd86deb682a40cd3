"""Help and completion need no torch, and every command starts with no more than it uses; each is in the table.

Each setting is an option whose sentence, default and least number are those of the Config it belongs to.
"""

import ast
import importlib
import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from commanding import regard, succeeded
from typer.main import get_command

import regard_lab as package
from docs.making.command_help import loaded_commands, made_help
from regard.errors import ArgumentError
from regard.layers import record_attention
from regard_lab.cli.app import (
    HELP_FILE,
    LISTED,
    Convert,
    TopLevel,
    Train,
    Unloaded,
    app,
    stored_help,
)
from regard_lab.cli.options import default_text, fields_in_order, sentence_of
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.decoding import Translator
from regard_lab.lessons import LESSONS
from regard_lab.seeing import look
from regard_lab.text import END
from regard_lab.training import recipes

ROOT = Path(package.__file__).parent
TABLES = {"": TopLevel, "train ": Train, "convert ": Convert}
MODULES = {}
for prefix, table in TABLES.items():
    MODULES |= {prefix + name: module for name, module in table.MODULES.items()}
EXPORTED = (getattr(recipes, name) for name in recipes.__all__)
CONFIGS = {
    f"train {recipe.COMMAND}": recipe.Config for recipe in EXPORTED if hasattr(recipe, "COMMAND")
}
CONFIGS["convert kv-heads"] = Uptraining.Config
# All in one process: torch stays in `sys.modules` once it is imported, so the first command that imports it fails.
ASK = """
import contextlib, io, json, sys
from regard_lab.cli.app import app
for words in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        app([*words, "--help"], prog_name="regard")
    print(json.dumps([text.getvalue(), [name for name in ("torch", "numpy") if name in sys.modules]]))
"""
MODULES_AFTER = "import sys\n{program}\nprint('modules:', *sys.modules)"
HEAVY = (
    "sympy",
    "mpmath",
    "torch.fx",
    "torch._dynamo",
    "torch._inductor",
    "torch._refs",
    "matplotlib",
    "rich",
    "tokenizers",
    "sacrebleu",
    "accelerate",
    "transformers",
    "regard_lab.models",
    "regard_lab.decoding",
    "regard_lab.training",
    "regard_lab.seeing",
)
LIGHT = (
    (
        "show",
        "causal & (strided(4) | random_blocks(1, block=2, seed=0)) | per_head(full, prefix(2))",
        "--layers",
        "3",
    ),
    ("plan", "--q-len", "4096", "--pattern", "causal & causal_window(512)"),
    ("show", "causl"),
)
# Each command in a fork of a process that has imported torch alone; then the modules it imported besides.
RUN = """
import json, os, sys, torch
before = set(sys.modules)
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        sys.argv = ["regard", *words]
        try:
            from regard_lab.cli import main
            main()
        except SystemExit:
            print("\\nmodules:", *(set(sys.modules) - before), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def alone(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints in a Python of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    ).stdout


def test_a_command_that_computes_nothing_imports_what_it_uses_beside_torch():
    lines = [
        line for line in alone(RUN, json.dumps(LIGHT)).splitlines() if line.startswith("modules:")
    ]
    for words, line in zip(LIGHT, lines, strict=True):
        modules = line.split()
        assert "regard_lab.cli.app" in modules
        assert not set(HEAVY) & set(modules), words


def test_help_loads_the_parser_and_little_else_so_that_it_is_instant():
    """Counted in modules, which is the same on every machine."""
    main = "try:\n import regard_lab.cli as c; sys.argv = ['regard', '--help']; c.main()\nexcept SystemExit as e: pass"
    (_, parser), (text, loaded) = (
        alone(MODULES_AFTER.format(program=program)).split("modules:")
        for program in ("import typer", main)
    )
    assert "Learn attention:" in text
    names = set(loaded.split())
    assert not {"torch", "numpy", "rich", "tokenizers", "matplotlib"} & names
    beside = {name for name in names - set(parser.split()) if not name.startswith("regard")}
    assert len(beside) <= len(parser.split()) / 2, sorted(beside)


@pytest.mark.parametrize("words", [["lesson"], ["lesson", "--list"], ["lesson", "--json"]])
def test_the_lessons_are_listed_with_the_parser_and_little_else(words):
    main = f"sys.argv = {['regard', *words]!r}\nfrom regard_lab.cli import main\ntry: main()\nexcept SystemExit: pass"
    (_, parser), (text, loaded) = (
        alone(MODULES_AFTER.format(program=program)).split("modules:")
        for program in ("import typer", main)
    )
    for name in LESSONS:
        assert name in text
    names = set(loaded.split())
    assert not {"torch", "numpy", "matplotlib", *HEAVY} & names
    beside = {name for name in names - set(parser.split()) if not name.startswith("regard")}
    assert len(beside) <= len(parser.split()), sorted(beside)


def test_the_help_of_every_command_needs_no_torch_also_after_arguments():
    commands = [name.split() for name in MODULES] + [
        ["translate", "RUN", "a sentence"],
        ["show", "a", "--length", "8"],
    ]
    *answers, (after_options, _) = map(json.loads, alone(ASK, json.dumps(commands)).splitlines())
    for words, (text, heavy) in zip(commands, answers, strict=False):
        name = "translate" if "RUN" in words else " ".join(words)
        assert text.startswith(f"Usage: regard {name} [OPTIONS]"), words
        assert not heavy, f"`regard {name} --help` has imported {', '.join(heavy)}"
    assert after_options == answers[list(MODULES).index("show")][0]  # the command itself prints it


def test_the_stored_help_is_that_of_the_commands_in_every_width():
    changed = (
        "a command has changed; make figures, and read what changed in regard_lab/cli/help.json"
    )
    assert HELP_FILE.read_text("utf-8") == made_help(), changed
    group = get_command(app)
    for width in (60, 80):
        ctx = group.context_class(
            group, info_name="regard", terminal_width=width, **group.context_settings
        )
        for place, command, inner in loaded_commands(group, ctx):
            unloaded = Unloaded(command.name, place)
            context = unloaded.context_class(
                unloaded, info_name=inner.info_name, parent=inner.parent
            )
            assert unloaded.get_help(context) == command.get_help(inner)
            assert unloaded.help, f"write a sentence about {place} as its docstring"


def test_the_first_head_of_the_first_layer_is_0_everywhere(run_folder):
    translator = Translator.load(run_folder)
    expected = look(translator.model, translator.tokeniser, "the animal sleeps", ()).encoder[0, 0]
    with torch.no_grad(), record_attention(translator.model) as recorded:
        translator.model.encode(
            torch.tensor([[*translator.tokeniser.encode("the animal sleeps"), END]])
        )
    (first, *_), names = recorded["encoder.0.attention"], list(recorded.details)
    assert names[0] == "encoder.0.attention"
    for head, is_first in ((0, True), (1, False)):
        assert ((first.weights[0, head] - expected).abs().max() < 1e-5) == is_first
    drawn = regard("show", "per_head(full, causal)", "--length", "3").out
    assert "head 0: full" in drawn
    assert "head 1: causal" in drawn


def complete(line: str) -> tuple[list[str], set[str]]:
    """What Tab offers at the end of a line in bash, and the modules that are imported then."""
    words = line.split(" ")
    asked = {
        "_REGARD_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys\nfrom regard_lab.cli import main\nsys.argv = ['regard']\ntry: main()\n"
    text, _, modules = alone(
        f"{program}finally: print('modules:', *sys.modules)", **asked
    ).partition("modules:")
    return text.split(), set(modules.split())


def test_commands_and_options_are_completed_without_torch():
    for line, offered in (
        ("regard tra", {"train", "translate"}),
        ("regard train translation --data x --valid", {"--valid", "--validate-every"}),
        (
            "regard show --",
            {re.search(r"--[a-z-]+", name)[0] for name in stored_help()["show.show"]["Options"]},
        ),
        ("regard translate runs/de", set()),  # files are left to the shell
    ):
        offered_here, modules = complete(line)
        assert set(offered_here) == offered
        assert "regard_lab.cli.app" in modules
        assert not {"torch", "rich", "numpy"} & modules


def test_the_script_of_a_shell_is_shown(monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_COMPLETE" in succeeded("--show-completion", "bash").out


def test_python_m_regard_lab_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "regard_lab", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("regard ")


def test_the_list_of_commands_names_each_once_in_a_line_that_fits_a_terminal():
    text = succeeded("--help").out
    assert "..." not in text.replace("[ARGS]...", "")
    assert all(len(line) <= 80 for line in text.splitlines())
    group = get_command(app)
    listed = itertools.chain.from_iterable(LISTED.values())
    assert sorted(listed) == sorted(group.commands)
    for commands in LISTED.values():
        for name, command in commands.items():
            assert re.search(rf"^  {name} +{re.escape(command.summary)}$", text, re.MULTILINE)


def test_every_command_is_in_the_table_with_a_test_and_a_line_in_the_documentation():
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py"))
    tests = tests.replace('begin("', '"train", "')  # as trainings are begun in their tests
    pages = "".join(
        path.read_text("utf-8")
        for path in (ROOT.parent / "README.md", *ROOT.parent.glob("docs/**/*.md"))
    )
    for command in MODULES:
        words = ", ".join(f'"{word}"' for word in command.split())
        assert re.search(rf"{words}[,)]", tests), f"test `regard {command}` in tests/regard_lab/cli"
        assert f"regard {command}" in pages, f"write about `regard {command}` in README.md or docs/"
    used = {*MODULES.values(), "app", "interrupts"}
    for path in ROOT.glob("cli/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("regard_lab.cli."):
                used.add(str(node.module).removeprefix("regard_lab.cli."))
    assert not {path.stem for path in ROOT.glob("cli/[!_]*.py")} - used, (
        "add a row in regard_lab/cli/app.py"
    )


def test_every_recipe_is_exported_and_a_command():
    # one that is not imported counts too
    for module in pkgutil.iter_modules(recipes.__path__, f"{recipes.__name__}."):
        importlib.import_module(module.name)
    for recipe in recipes.Recipe.__subclasses__():
        if recipe.__module__.startswith("regard_lab."):
            assert recipe.__name__ in recipes.__all__, (
                f"export {recipe.__name__} in regard_lab.training.recipes"
            )
            assert recipe.COMMAND in Train.MODULES, (
                f"add a row {recipe.COMMAND!r} to Train in regard_lab/cli/app.py"
            )


# --- settings as options


def squeezed(text: str) -> str:
    """A text without its spaces, which a terminal puts anywhere."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("command", CONFIGS)
def test_every_setting_is_an_option_with_its_sentence_and_its_default(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = squeezed(regard(*command.split(), "--help").out)
    config = CONFIGS[command]
    variants = recipes.TranslationTraining.VARIANTS if command == "train translation" else {}
    for field in fields_in_order(config):
        name = field.metadata.get("option", f"--{field.name.replace('_', '-')}").split("/")[0]
        assert name in text, name
        assert (
            squeezed(f"{sentence_of(config, field.name)} {default_text(field, variants)}") in text
        ), name
    for values in variants.values():
        assert all(getattr(config, name) != value for name, value in values.items())
    with pytest.raises(LookupError, match="write one under Args"):
        sentence_of(config, "speed")


def test_no_command_writes_a_default_into_its_help():
    for path in ROOT.glob("cli/*.py"):
        assert not re.search(r"\[default: ['\"]?-?[\d.]+['\"]?[\];]", path.read_text("utf-8")), (
            path.name
        )


CHECKED = (
    "steps",
    "warmup_steps",
    "weight_decay",
    "batches_per_step",
    "accumulate",
    "validate_every",
    "patience",
    "keep",
    "seed",
    "heads",
    "kv_heads",
    "layers",
)


@pytest.mark.parametrize(
    "config", [config for name, config in CONFIGS.items() if name.startswith("train ")]
)
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
