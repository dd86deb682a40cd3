"""What an engineer with own data meets in the first hour: each answer names what is wrong and what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import Forked
from test_commands import regard, run_folder  # noqa: F401

from regard_lab.cli.train import conclude
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models import LanguageModel
from regard_lab.text import BEGIN, END
from regard_lab.training import TrainingResult


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


def test_a_run_does_not_go_on_with_another_test_split(begun):
    """Its test pairs are no part of what was learned, and were replaced where only they had changed."""
    kept = (begun / "run/test.jsonl").read_bytes()
    target = json.loads(kept.splitlines()[0])["target"]
    data = begun / "here/st.csv"
    data.write_text(data.read_text().replace(f",{target}\n", f",{target} anders\n"))
    answer = regard("train", "translation", "--out", begun / "run", "--resume", "--steps", 3, "--data", data)
    assert answer.returncode == 2
    assert "was begun with other data (its test.jsonl does not hold the " in said(answer)
    assert (begun / "run/test.jsonl").read_bytes() == kept


def test_a_language_model_is_evaluated_on_a_text(tmp_path):
    text = "".join(f"The bird number {n} sang in the street.\n" for n in range(90))
    (tmp_path / "old.txt").write_text(text)
    (tmp_path / "new.txt").write_text(text.replace("bird", "dog"))
    run = tmp_path / "run"
    answer = regard("train", "language-model", "--data", tmp_path / "old.txt", "--out", run, "--steps", 1, *SMALL)
    assert answer.returncode == 0, answer.stderr
    answer = regard("evaluate", run, tmp_path / "new.txt", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["characters"] == len(text.replace("bird", "dog"))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    model, ids = whole_text(run, tmp_path / "new.txt")
    assert found["loss"] == pytest.approx(model, rel=1e-4)
    bits = found["loss"] * ids / math.log(2) / found["characters"]
    assert (found["ids"], found["bits_per_character"]) == (ids, pytest.approx(bits))
    assert "trained on" in regard("evaluate", run, tmp_path / "old.txt").stdout.decode()
    assert "trained on" not in regard("evaluate", run, tmp_path / "new.txt").stdout.decode()
    assert f"regard evaluate {run} TEXT.txt" in said(regard("evaluate", run))
    assert "--beam is for translators" in said(regard("evaluate", run, tmp_path / "new.txt", "--beam", 2))


def whole_text(run, path) -> tuple[float, int]:
    """The loss of a language model on a text, block by block from the formula, and the number of ids."""
    saved, tokeniser = load_with_tokeniser(run)
    model = LanguageModel.from_saved(saved, "here").eval()
    ids = [*tokeniser.encode(path.read_text()), END]
    blocks = [ids[at : at + 256] for at in range(0, len(ids), 256)]
    with torch.no_grad():
        rows = [(model(torch.tensor([[BEGIN, *block[:-1]]]))[0].double().log_softmax(-1), block) for block in blocks]
    return -sum(float(logs[range(len(block)), block].sum()) for logs, block in rows) / len(ids), len(ids)


@pytest.mark.parametrize(("option", "number"), [("--minutes", "-1"), ("--dropout", "2"), ("--dropout", "2.0")])
def test_a_number_is_quoted_as_it_was_typed(tmp_path, option, number):
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 9)
    data = ("--data", tmp_path / "pairs.tsv", "--out", tmp_path / "new")
    for words in ((option, number), (f"{option}={number}",)):
        assert said(regard("train", "translation", *data, *words)).startswith(f"regard: {option} is {number}; ")


def test_one_step_and_one_second_are_singular(tmp_path, capsys):
    done = TrainingResult(1, 2.0, None, None, 1.2, 6.0, 9, 0, "steps")
    conclude("translation", tmp_path, done, None)
    assert "1 step, 0:06 (1 CPU second);" in capsys.readouterr().err


def test_a_destroyed_model_is_answered_with_options_that_exist(begun):
    data = begun / "here/st.csv"
    options = ("--steps", 3, "--learning-rate", 1e30, "--warmup-steps", 1, *SMALL)
    answer = regard("train", "translation", "--data", data, "--out", begun / "hot", *options)
    assert answer.returncode == 1
    assert "learning rate (1e+30)" in said(answer)
    assert "clip" not in said(answer)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_named(unbuffered):
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-c", "from regard_lab.cli import main; main()", "show", "causal"], stdout=full,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr.decode() == "regard: standard output: No space left on device\n"


def test_a_full_disk_is_named_by_a_command_that_has_computed(run_folder):  # noqa: F811
    with open("/dev/full", "w") as full:
        answer = Forked("translate", run_folder, "a street", stdout=full)
        _, told = answer.communicate()
    assert answer.returncode == 1
    assert told.decode() == "regard: standard output: No space left on device\n"


def test_a_folder_that_cannot_be_written_is_refused_before_the_data_are_read(tmp_path, monkeypatch):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"sentence {n}\tSatz {n}\n" for n in range(90)))

    def refuse(path, *more, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    answer = regard("train", "translation", "--data", data, "--out", tmp_path / "some/run", "--steps", 1)
    assert answer.returncode == 1
    assert answer.stderr.decode() == (
        f"regard: {tmp_path / 'some/run'} cannot be made, since {tmp_path} takes no new folder (Permission denied); "
        f"choose another folder\n"
    )


@pytest.mark.parametrize(
    ("what", "name", "command"),
    [
        ("picture", "x.png", ("show", "causal", "--png")), ("picture", "x.png", ("lesson", "causal", "--png")),
        ("page", "x.html", ("walkthrough", "a b", "--html")),
    ],
)  # fmt: skip
def test_a_picture_or_page_in_a_folder_that_takes_no_files_is_refused_before_any_work(
    what, name, command, tmp_path, monkeypatch
):
    def refuse(**place):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("regard_lab.cli.console.TemporaryFile", refuse)
    answer = regard(*command, tmp_path / name)
    assert (answer.returncode, answer.stdout) == (1, b"")
    assert answer.stderr.decode() == (
        f"regard: the {what} {tmp_path / name} cannot be written: no file can be made in {tmp_path} (Permission "
        f"denied); choose another folder\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_folder_is_named_and_nothing_is_left(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("one word\tein Wort\n")
    answer = regard("train", "translation", "--data", data, "--out", data / "run")
    assert (
        said(answer)
        == f"regard: {data / 'run'} cannot be made, since {data} takes no new folder (Not a directory); choose another "
        "folder"
    )
    assert regard("train", "translation", "--data", data, "--out", tmp_path / "a/b").returncode == 1  # one pair
    assert not (tmp_path / "a").exists()


def test_the_loss_of_a_step_and_that_of_validation_are_told_apart(begun):
    options = ("--data", begun / "here/st.csv", "--steps", 1, *SMALL)
    smoothed = regard("train", "translation", "--out", begun / "smoothed", "--label-smoothing", 0.1, *options)
    assert "the loss of a step includes label smoothing (0.1), so it stays above that of validation" in said(smoothed)
    plain = regard("train", "translation", "--out", begun / "plain", "--label-smoothing", 0, *options)
    assert "label smoothing" not in said(plain).replace("label smoothing 0,", "")
