"""Tab completes commands and options from the help that is kept; `python -m regard_lab` is the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from regard_lab.cli.app import HELP_FILE

ASK = "import sys\nfrom regard_lab.cli import main\n"
ASK += "try: main()\nfinally: print('modules:', *sys.modules, file=sys.stderr)"


def complete(line: str) -> tuple[list[str], set[str]]:
    """What Tab offers at the end of a line in bash, and the modules that are imported then."""
    words = line.split(" ")
    asked = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = ASK.replace("main()", "sys.argv = ['regard']; main()", 1)
    answer = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    return answer.stdout.split(), set(answer.stderr.rpartition("modules:")[2].split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("regard tra", ["train", "translate"]),
        ("regard train la", ["language-model"]),
        ("regard train translation --data x --valid", ["--valid", "--validate-every"]),
        ("regard show causal --la", ["--layers"]),
        ("regard translate runs/de", []),  # files are left to the shell
    ],
)
def test_commands_and_options_are_completed_without_torch(line, offered):
    found, modules = complete(line)
    assert set(offered) <= set(found) if offered else found == []
    assert all(word.startswith(line.split(" ")[-1]) for word in found)
    assert "regard_lab.cli.app" in modules
    assert not {"torch", "rich", "numpy"} & modules


def test_every_option_of_the_help_is_completed():
    kept = json.loads(HELP_FILE.read_text())["show.show"]["Options"]
    found, _ = complete("regard show --")
    assert found == [re.search(r"--[a-z-]+", option)[0] for option in kept]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown(shell):
    program = (
        f"import sys; from regard_lab.cli import main; sys.argv = ['regard', '--show-completion', '{shell}']; main()"
    )
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "_REGARD_COMPLETE" in answer.stdout


def test_python_m_regard_lab_is_the_command_line():
    answer = subprocess.run(
        [sys.executable, "-m", "regard_lab", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("regard ")
    wrong = subprocess.run([sys.executable, "-m", "regard_lab", "shwo"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
