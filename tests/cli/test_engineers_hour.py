"""What an engineer with own data meets in the first hour: each answer names what is wrong and what to do."""

from __future__ import annotations

import pytest
from test_commands import regard, run_folder  # noqa: F401


def said(answer) -> str:
    """What a command wrote to standard error, as one line."""
    return " ".join(answer.stderr.decode().split())


@pytest.mark.parametrize("command", [("translate", "{}", "A dog."), ("evaluate", "{}"), ("generate", "{}", "A dog.")])
def test_a_run_that_does_not_exist_is_called_so(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = regard(*(word.format("runs/min") for word in command))
    assert answer.returncode == 2
    assert said(answer) == ("regard: runs/min does not exist; check the path, which is relative to the current folder")
    (tmp_path / "runs" / "mini").mkdir(parents=True)
    assert said(regard(*(word.format("runs/min") for word in command))) == (
        "regard: runs/min does not exist; did you mean runs/mini?"
    )


def test_a_folder_of_runs_names_those_inside(run_folder):  # noqa: F811
    answer = regard("translate", run_folder.parent, "A dog.")
    assert answer.returncode == 2
    assert said(answer).endswith(
        f"holds no model: there is neither config.json nor checkpoints.json in it; there is one in {run_folder}"
    )


def test_a_file_that_does_not_exist_names_the_nearest(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    answer = regard("train", "translation", "--data", tmp_path / "pair.tsv", "--out", tmp_path / "new")
    assert answer.returncode == 2
    assert said(answer) == f"regard: {tmp_path / 'pair.tsv'} does not exist; did you mean {tmp_path / 'pairs.tsv'}?"
