"""Every command is in the table, loads, and has a test and a line in the documentation; every recipe is a command."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from test_commands import regard
from test_defaults import COMMANDS

import regard_lab as package
from regard_lab.cli.app import Convert, TopLevel, Train
from regard_lab.training import recipes

ROOT = Path(package.__file__).parent
TABLES = {"": TopLevel, "train ": Train, "convert ": Convert}
SOURCES = {prefix + name: one for prefix, table in TABLES.items() for name, one in table.SENTENCES.items()}
TESTS = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
PAGES = "".join(path.read_text("utf-8") for path in (ROOT.parent / "README.md", *ROOT.parent.glob("docs/**/*.md")))

for module in pkgutil.iter_modules(recipes.__path__, f"{recipes.__name__}."):  # one that nobody imports counts too
    importlib.import_module(module.name)
RECIPES = [kind for kind in recipes.Recipe.__subclasses__() if kind.__module__.startswith("regard_lab.")]


@pytest.mark.parametrize("command", SOURCES)
def test_every_command_of_the_table_loads(command):
    answer = regard(*command.split(), "--help")
    assert answer.returncode == 0, answer.stderr.decode()


@pytest.mark.parametrize("command", SOURCES)
def test_every_command_has_a_test_and_a_line_in_the_documentation(command):
    words = ", ".join(f'"{word}"' for word in command.split())
    assert re.search(rf"{words}[,)]", TESTS), f"test `regard {command}` in tests/regard_lab/cli"
    assert f"regard {command}" in PAGES, f"write about `regard {command}` in README.md or docs/"


def test_every_file_of_the_command_line_is_reached():
    files = {path.stem for path in ROOT.glob("cli/[!_]*.py")} - {"app"}
    used = {module for module, _ in SOURCES.values()}
    for path in ROOT.glob("cli/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("regard_lab.cli."):
                used.add(str(node.module).removeprefix("regard_lab.cli."))
    assert not files - used, (
        f"no command is in cli/{', '.join(sorted(files - used))}: add a row in regard_lab/cli/app.py"
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_every_recipe_is_exported_and_a_command(recipe):
    assert recipe.__name__ in recipes.__all__, f"export {recipe.__name__} in regard_lab.training.recipes"
    assert recipe.COMMAND in Train.SENTENCES, f"add a row {recipe.COMMAND!r} to Train in regard_lab/cli/app.py"
    command = f"train {recipe.COMMAND}"
    assert COMMANDS.get(command) is recipe.Config, (
        f"add {command!r} to COMMANDS in tests/regard_lab/cli/test_defaults.py"
    )
