"""What a training leaves for people: samples, explanations, averages; and what stops it, in one sentence each."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from forked import Forked
from test_commands import regard

from regard_lab.models import LanguageModel, TranslationTransformer
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.storage import load_model
from regard_lab.training.identity import FILES
from regard_lab.training.recipes.run_folder import FILES_OF_RECIPES

SMALL = ("--dim", 16, "--layers", 1, "--warmup-steps", 1, "--schedule", "constant", "--cpu")
PROGRAM = "from regard_lab.cli import main; main()"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text("".join(f"the bird number {n} sang,\n  and rain fell.\n\n" for n in range(40)))
    (folder / "pairs.tsv").write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90)))
    (folder / "labels.tsv").write_text("".join(f"{'odd' if n % 2 else 'even'}\tthe bird {n} sang\n" for n in range(80)))
    return folder


@pytest.fixture(scope="module")
def sorter(files):
    run = files / "sorter"
    options = ("--vocab-size", 300, "--heads", 2, "--steps", 5, "--validate-every", 2, "--keep", 3)
    answer = regard("train", "classifier", "--data", files / "labels.tsv", "--out", run, *options, *SMALL)
    assert answer.returncode == 0, answer.stderr
    return run


@pytest.fixture(scope="module")
def translator(files):
    run = files / "translator"
    options = ("--vocab-size", 300, "--heads", 2, "--steps", 3, "--validate-every", 2, "--gradient-checkpointing")
    answer = regard("train", "translation", "--data", files / "pairs.tsv", "--out", run, *options, *SMALL)
    assert answer.returncode == 0, answer.stderr
    return run


def last_line(answer):
    return answer.stderr.decode().strip().splitlines()[-1]


# What is left


def test_every_file_of_a_run_is_explained(translator):
    explained = {*FILES, *FILES_OF_RECIPES}
    said = (translator / "README.txt").read_text()
    assert all(f"\n{name}\n    " in said for name in explained)
    for path in translator.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        assert name in {*explained, "README.txt"} or name.startswith("step-"), name


def test_each_validation_leaves_translations_and_the_attention_of_one(translator):
    names = sorted(path.name for path in (translator / "samples").iterdir())
    assert names == [f"step-00000{step}.{kind}" for step in (2, 3) for kind in ("png", "txt")]
    assert (translator / "samples/step-000003.png").read_bytes().startswith(b"\x89PNG")
    source, wanted, found, *_ = (translator / "samples/step-000003.txt").read_text().splitlines()
    number = source.split()[-1]
    assert (source, wanted) == (f"source     sentence number {number}", f"should be  Satz Nummer {number}")
    told = regard("translate", translator, f"sentence number {number}").stdout.decode().rstrip("\n")
    assert found.split("  ", 1)[1].strip() == told.strip()  # the model of step 3 is the best one


def test_other_models_leave_samples_of_what_they_do(files, sorter, tmp_path):
    options = ("--data", files / "text.txt", "--steps", 1, "--heads", 2, "--vocab-size", 300, *SMALL)
    for command, words in (("language-model", "written on  "), ("masked-words", "asked  ")):
        answer = regard("train", command, "--out", tmp_path / command, *options)
        assert answer.returncode == 0, answer.stderr
        assert words in (tmp_path / command / "samples/step-000001.txt").read_text()
    assert "should be  " in (sorter / "samples/step-000004.txt").read_text()


def test_a_sample_that_cannot_be_shown_is_told_and_stops_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = ("--vocab-size", 300, "--heads", 2, "--steps", 1, *SMALL)
    answer = regard("train", "translation", "--data", files / "pairs.tsv", "--out", tmp_path / "run", *options)
    assert answer.returncode == 0, answer.stderr
    said = (tmp_path / "run/samples/step-000001.txt").read_text()
    assert said.startswith("source")
    assert "no picture: a picture needs the package" in said
    assert "no picture: drawing needs the package matplotlib" in answer.stderr.decode()  # nor curves


def test_what_a_resumed_run_was_given_is_kept_for_the_next(files, tmp_path):
    run, options = tmp_path / "run", ("--vocab-size", 300, "--heads", 2, "--validate-every", 1, *SMALL)
    first = regard("train", "language-model", "--data", files / "text.txt", "--out", run, "--steps", 1, *options)
    assert first.returncode == 0, first.stderr
    assert (
        regard("train", "language-model", "--out", run, "--resume", "--steps", 3, "--keep", 5, "--cpu").returncode == 0
    )
    settings = json.loads((run / "settings.json").read_text())["settings"]
    assert (settings["steps"], settings["keep"]) == (3, 5)
    again = regard("train", "language-model", "--out", run, "--resume", "--cpu")
    assert "all steps are done: 3 steps" in last_line(again)
    assert {"step-000002", "step-000003"} <= {folder.name for folder in run.glob("step-*")}


def test_minutes_alone_end_a_training_and_no_number_of_steps_is_needed(files, tmp_path):
    options = ("--data", files / "text.txt", "--out", tmp_path / "run", "--minutes", 0.03, "--vocab-size", 300, *SMALL)
    answer = regard("train", "language-model", *options, "--heads", 2, "--cooldown", 0.5)
    assert answer.returncode == 0, answer.stderr
    assert "the minutes are over: " in last_line(answer)
    said = answer.stderr.decode()
    assert "and 0.03 minutes: size tiny (" in said
    assert "; steps of up to " in said


@pytest.mark.parametrize("wish", [("--learning-rate", -1), ("--parallel", "fsdp"), ("--precision", "float16")])
def test_a_refused_training_leaves_no_settings(files, tmp_path, wish):
    data = (
        "--data",
        files / "text.txt",
        "--out",
        tmp_path / "run",
        "--vocab-size",
        300,
        "--heads",
        2,
        "--steps",
        1,
        *SMALL,
    )
    refused = regard("train", "language-model", *data, *wish)
    assert refused.returncode == 2, refused.stderr
    assert not (tmp_path / "run/settings.json").exists()
    assert regard("train", "language-model", *data, "--resume").returncode == 0


def test_a_folder_with_a_name_like_a_checkpoint_is_left_alone(files, tmp_path):
    run, options = tmp_path / "run", ("--vocab-size", 300, "--heads", 2, "--validate-every", 1, *SMALL)
    data = ("--data", files / "text.txt")
    assert regard("train", "language-model", *data, "--out", run, "--steps", 2, *options).returncode == 0
    (run / "step-notes").mkdir()
    answer = regard("train", "language-model", "--out", run, "--resume", "--steps", 4)
    assert answer.returncode == 0, answer.stderr
    assert (run / "step-notes").is_dir()


def test_gradient_checkpointing_is_handed_to_the_models_that_have_it(files, translator):
    assert TranslationTransformer.load(translator).config.gradient_checkpointing
    options = ("--data", files / "pairs.tsv", "--out", files / "none", "--model", "bahdanau")
    refused = regard("train", "translation", *options, "--gradient-checkpointing")
    assert "--gradient-checkpointing belongs to the Transformer" in last_line(refused)


# What is made of it


def test_the_mean_of_the_last_checkpoints_is_a_model_like_any_other(sorter, tmp_path):
    answer = regard("average", sorter, "--last", 2, "--out", tmp_path / "mean")
    assert "the mean of step-000004, step-000005 is in" in last_line(answer)
    parts = [load_model(sorter / name).state for name in ("step-000004", "step-000005")]
    for name, tensor in TextEncoder.load(tmp_path / "mean").state_dict().items():
        torch.testing.assert_close(tensor, (parts[0][name] + parts[1][name]) / 2)
    assert regard("classify", tmp_path / "mean", "the bird 4 sang").returncode == 0
    more = regard("average", sorter, "--last", 9, "--out", tmp_path / "more")
    assert more.returncode == 2
    assert "keeps 3 (step-000002, step-000004, step-000005)" in last_line(more)


def test_each_text_has_the_label_that_is_most_probable(sorter):
    lines = b"the bird 4 sang\n\nthe bird 7 sang, and sang, and sang"
    records = [json.loads(line) for line in regard("classify", sorter, "--json", stdin=lines).stdout.splitlines()]
    assert [record["text"] for record in records] == lines.decode().splitlines()
    assert records[1] == {"text": "", "label": None, "probabilities": {}}
    plain = regard("classify", sorter, stdin=lines).stdout.decode().splitlines()
    for record, line in zip(records, plain, strict=True):
        found = record["probabilities"]
        if found:
            assert sum(found.values()) == pytest.approx(1)
            assert line == f"{record['label']}\t{max(found.values()):.3f}"
            assert found[record["label"]] == max(found.values())
    alone = json.loads(regard("classify", sorter, "--json", "the bird 4 sang").stdout)["probabilities"]
    assert alone == pytest.approx(records[0]["probabilities"], abs=1e-6)  # what is beside a text changes nothing


def test_a_model_that_sorts_nothing_is_refused(translator, tmp_path):
    assert "translation-transformer" in last_line(regard("classify", translator, "a"))
    assert regard("classify", tmp_path / "nowhere", "a").returncode == 2


# What stops it


def test_a_loss_that_is_not_finite_is_one_sentence_and_the_run_goes_on_where_it_was(files, tmp_path):
    options = ("--data", files / "text.txt", "--vocab-size", 300, "--heads", 2, "--steps", 9, "--learning-rate", 1e30)
    answer = regard("train", "language-model", "--out", tmp_path / "run", *options, *SMALL)
    assert answer.returncode == 1
    said = last_line(answer)
    assert "cannot be done: the gradient of batch 1 is not finite" in said
    assert "the first tensor that is not is the" in said
    assert "--skip-non-finite 10" in said
    step = int(said.split("as it was after step ")[1].split(".")[0])
    assert (tmp_path / "run" / f"step-{step:06d}").is_dir()
    over = regard("train", "language-model", "--out", tmp_path / "run", "--resume", "--skip-non-finite", 20, "--cpu")
    assert over.returncode == 0, over.stderr
    assert f"going on after step {step}" in over.stderr.decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parallel", "fsdp"), "shares weights among processes, and there is 1"),
        (("--parallel", "both"), "parallel is 'both'; there are ddp, fsdp"),
        (("--tensorboard",), "pip install tensorboard"),
    ],
)
def test_what_cannot_be_is_refused_before_any_step(files, tmp_path, monkeypatch, options, words):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    arguments = ("--data", files / "pairs.tsv", "--vocab-size", 300, "--heads", 2, "--steps", 1, *SMALL)
    answer = regard("train", "translation", "--out", tmp_path / "run", *arguments, *options)
    assert answer.returncode in (1, 2)
    assert words in last_line(answer)
    assert not list(tmp_path.glob("run/step-*"))


def test_a_termination_signal_saves_and_says_how_to_go_on(files, tmp_path):
    arguments = ["--data", files / "pairs.tsv", "--vocab-size", 300, "--heads", 2, "--validate-every", 3, *SMALL]
    process = Forked("train", "translation", "--out", tmp_path / "run", "--steps", 100_000, *arguments)
    while b"validation loss" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=1200)
    last, command = said.decode().splitlines()[-2:]
    assert process.returncode == 130
    assert last.startswith("regard: interrupted: ")
    assert last.endswith("; go on with:")
    assert command == f"regard train translation --out {tmp_path / 'run'} --resume"
    steps = int(last.split(" steps")[0].split()[-1].replace(",", ""))
    assert (tmp_path / "run" / f"step-{steps:06d}").is_dir()


@pytest.mark.slow
def test_two_processes_are_one_voice_and_one_run(files, tmp_path):
    """Through the real launcher, weights shared; then the run goes on with weights whole."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    begin = [
        "--data",
        files / "text.txt",
        "--vocab-size",
        300,
        "--heads",
        2,
        "--steps",
        2,
        "--parallel",
        "fsdp",
        *SMALL,
    ]
    for options in (begin, ["--resume", "--steps", 4, "--parallel", "ddp", "--cpu"]):
        command = [*launcher, sys.executable, "-c", PROGRAM, "train", "language-model", "--out", tmp_path / "run"]
        done = subprocess.run(
            [*map(str, command), *map(str, options)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
            timeout=1200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b"all steps are done") == 1
    sessions = json.loads((tmp_path / "run/run.json").read_text())["sessions"]
    assert [(one["processes"], one["parallel"], one["after_step"]) for one in sessions] == [
        (2, "fsdp", 0),
        (2, "ddp", 2),
    ]
    assert LanguageModel.load(tmp_path / "run").config.layers == 1
    assert "written on" in (tmp_path / "run/samples/step-000002.txt").read_text()
