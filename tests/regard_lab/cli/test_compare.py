"""`regard compare`: trained models side by side on the same files; and what a silent command says."""

import json
import time

import pytest

from regard_lab.cli import console
from regard_lab.training.recipes import comparing


def test_an_interrupted_comparison_of_runs_keeps_what_was_evaluated(run_folder, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("number one\tNummer eins\n")
    evaluate, done = comparing.evaluate_run, []

    def once(run, *rest, **more):
        if done:
            raise KeyboardInterrupt
        done.append(run)
        return evaluate(run, *rest, **more)

    monkeypatch.setattr(comparing, "evaluate_run", once)
    with pytest.raises(KeyboardInterrupt):
        comparing.compare_runs([run_folder, run_folder], [tmp_path / "pairs.tsv"], tmp_path)
    assert [row["run"] for row in json.loads((tmp_path / "compare.json").read_text())["rows"]] == [str(run_folder)]


def test_a_command_that_is_silent_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(console, "QUIET", 0.05)
    with console.counting("evaluating"), console.counting("translating", 60) as progress:
        progress(7)
        time.sleep(0.3)
    first, *others = capsys.readouterr().err.splitlines()
    assert (first, {*others}) == ("translating 60", {"  translating 7 of 60, 0:00"})  # the innermost alone
