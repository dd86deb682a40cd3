"""After Ctrl-C a command says what is kept and how to go on, if anything is; a training bar says what is done."""

import io
import signal
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console
from test_commands import regard, run_folder  # noqa: F401

from regard_lab.cli import demo, evaluate, train
from regard_lab.cli.interrupts import heed_interrupts, quiet_interrupts
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.models.storage import CHECKPOINTS_FILE
from regard_lab.seeing.lens_study.study import JSON
from regard_lab.training import Started, StepDone
from regard_lab.training.comparison.study import Comparison
from regard_lab.training.recipes import LanguageModelTraining


def interrupted(file):
    """A function that is interrupted after it has written the file; before, where there is none."""

    def work(*arguments, **options):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
        raise KeyboardInterrupt

    return work


COMMANDS = {
    "train": (
        ("train", "language-model", "--data", "text.txt"), LanguageModelTraining, "prepare", CHECKPOINTS_FILE,
        ["regard: interrupted; {out} keeps the run as it was last saved; go on with:",
         "regard train language-model --out {out} --resume"],
    ),
    "compare": (
        ("compare", "--data", "pronouns", "--models", "none"), Comparison, "run", f"none/{CHECKPOINTS_FILE}",
        ["regard: interrupted; what is done is kept; go on with:", "regard compare --out {out} --resume"],
    ),
    "convert": (
        ("convert", "kv-heads", "model", "--kv-heads", 2, "--text", "text.txt", "--uptrain-steps", 9),
        Uptraining, "convert", CHECKPOINTS_FILE,
        ["regard: interrupted; {out} keeps the model as it was last saved, and the same command goes on"],
    ),
    "lenses": (
        ("lenses", "{run}"), evaluate, "study_lenses", JSON,
        ["regard: interrupted; {out} keeps the lenses that are measured, and the same command goes on"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_names_what_is_kept_and_how_to_go_on(name, tmp_path, monkeypatch, run_folder):  # noqa: F811
    command, owner, function, file, said = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a few words of text\n" * 50)
    command = [str(word).format(run=run_folder) for word in command]
    out = tmp_path / "out"
    monkeypatch.setattr(owner, function, interrupted(None))
    answer = regard(*command, "--out", out)
    assert (answer.returncode, answer.stderr.decode().splitlines()[-1]) == (130, "regard: interrupted")
    monkeypatch.setattr(owner, function, interrupted(out / file))
    answer = regard(*command, "--out", out)
    assert answer.returncode == 130
    assert answer.stderr.decode().splitlines()[-len(said) :] == [line.format(out=out) for line in said]


def test_ctrl_c_after_the_training_of_the_demo_says_that_the_model_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "load_translation_data", lambda *_, **__: SimpleNamespace(notes=["two pairs"], test=[]))
    done = SimpleNamespace(stopped="steps", steps=9, wall_seconds=1.0, cpu_seconds=1.0)
    monkeypatch.setattr(demo, "_train", lambda *_: done)
    monkeypatch.setattr(demo.Translator, "load", interrupted(None))
    answer = regard("demo", "--out", tmp_path / "run")
    assert answer.returncode == 130
    assert answer.stderr.decode().splitlines()[-1] == (
        f"regard: interrupted; the trained model is kept in {tmp_path / 'run'}, and the same command goes on from there"
    )


def test_before_the_first_step_the_bar_says_what_is_done(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(train, "has_terminal", lambda: True)
    monkeypatch.setattr(train, "terminal", lambda: Console(file=shown, force_terminal=True, width=120))
    with train.training_progress() as told:
        told(Started(0, 9))
    assert "preparing the first step" in shown.getvalue()
    assert "/?" not in shown.getvalue()
    with train.training_progress() as told:
        told(Started(3, 9))
    assert "preparing step 4" in shown.getvalue()
    for steps, count in ((9, "5/9"), (None, "step 5")):
        with train.training_progress() as told:
            told(StepDone(5, steps, 1.0, 0.1, 1.0, 100.0, None))
        assert count in shown.getvalue()


def test_ctrl_c_ends_the_program_only_while_nothing_is_to_be_saved():
    usual = signal.getsignal(signal.SIGINT)
    assert usual is signal.default_int_handler
    with quiet_interrupts():
        assert signal.getsignal(signal.SIGINT) is not usual
        heed_interrupts()
        assert signal.getsignal(signal.SIGINT) is usual
    with quiet_interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is usual


def test_another_thread_changes_nothing_about_ctrl_c():
    """Only the main thread may; a program that calls a command from another is no mistake."""
    found = []

    def work():
        with quiet_interrupts():
            heed_interrupts()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
