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


SMALL = ("--dim", 16, "--heads", 2, "--layers", 1, "--vocab-size", 300, "--validate-every", 2, "--cpu")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A training run that was begun in the folder of its data, with a path relative to it."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "st.csv").write_text("source,target\n" + "".join(f"sentence {n},Satz {n}\n" for n in range(90)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(here)
    answer = regard("train", "translation", "--data", "st.csv", "--out", tmp_path / "run", "--steps", 2, *SMALL)
    assert answer.returncode == 0, answer.stderr
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_run_goes_on_in_another_folder_once_its_data_are_named(begun):
    resume = ("train", "translation", "--out", begun / "run", "--resume", "--steps", 3)
    lost = regard(*resume)
    assert lost.returncode == 2
    assert said(lost) == (
        f"regard: st.csv does not exist here, and the run in {begun / 'run'} was begun with this path, relative to "
        f"the folder in which it was begun; name the place of the file by --data, or resume the run where that path "
        f"is right"
    )
    on = regard(*resume, "--data", begun / "here/st.csv")
    assert on.returncode == 0, on.stderr
    assert "going on after step 2 of 3" in said(on)
    assert regard(*resume[:-1], 4).returncode == 0  # the new place is kept


def test_a_run_does_not_go_on_with_other_data(begun):
    (begun / "elsewhere/st.csv").write_text("source,target\n" + "".join(f"sentence {n},Satz {n}\n" for n in range(80)))
    answer = regard("train", "translation", "--out", begun / "run", "--resume", "--steps", 3)
    assert answer.returncode == 2
    assert "was begun with other data (pairs was " in said(answer)
    nowhere = regard("train", "translation", "--out", begun / "run", "--resume", "--data", "sr.csv")
    assert said(nowhere) == "regard: sr.csv does not exist; did you mean st.csv?"


def test_a_destroyed_model_is_answered_with_options_that_exist(begun):
    data = begun / "here/st.csv"
    options = ("--steps", 3, "--learning-rate", 1e30, "--warmup-steps", 1, *SMALL)
    answer = regard("train", "translation", "--data", data, "--out", begun / "hot", *options)
    assert answer.returncode == 1
    assert "learning rate (1e+30)" in said(answer)
    assert "clip" not in said(answer)
