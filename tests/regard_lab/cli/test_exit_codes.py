"""What does not exist ends a command with 2, Ctrl-C with 130, and neither with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from forked import Forked
from test_commands import regard, run_folder  # noqa: F401

RUN = "missing or empty or a file"
COMMANDS = {
    "translate": ("translate", RUN, "x"),
    "generate": ("generate", RUN, "x"),
    "classify": ("classify", RUN, "x"),
    "evaluate": ("evaluate", RUN),
    "average": ("average", RUN, "--out", "{new}"),
    "lenses": ("lenses", RUN),
    "convert": ("convert", "kv-heads", RUN, "--kv-heads", "1", "--out", "{new}"),
    "walkthrough --run": ("walkthrough", "a b", "--run", RUN),
    "lesson --run": ("lesson", "heads", "--run", RUN),
}
FILES = {
    "translation": ("train", "translation", "--data", "{missing}", "--out", "{new}"),
    "translation, two files": ("train", "translation", "--data", "{missing}", "--data", "{file}", "--out", "{new}"),
    "translation, a folder": ("train", "translation", "--data", "{empty}", "--out", "{new}"),
    "validation": ("train", "translation", "--data", "{table}", "--valid", "{missing}", "--out", "{new}"),
    "validation of the corpus": ("train", "translation", "--data", "pronouns", "--valid", "{table}", "--out", "{new}"),
    "language model": ("train", "language-model", "--data", "{missing}", "--out", "{new}"),
    "masked words": ("train", "masked-words", "--data", "{missing}", "--out", "{new}"),
    "classifier": ("train", "classifier", "--data", "{missing}", "--out", "{new}"),
    "compare": ("compare", "--data", "{missing}", "--models", "none", "--out", "{new}"),
    "evaluate": ("evaluate", "{run}", "{missing}"),
    "approximation": ("approximation", "{missing}"),
    "approximation, a folder": ("approximation", "{empty}"),
    "weights": ("walkthrough", "a b", "--weights", "{missing}"),
    "page": ("walkthrough", "a b", "--html", "{missing}/page.html"),
    "picture": ("show", "causal", "--png", "{missing}/a.png"),
    "bench": ("bench", "plain", "--resume", "--out", "{empty}"),
}
NAMES = {
    "command": ("shwo",),
    "option": ("show", "causal", "--lenght", "3"),
    "subcommand": ("train", "translator"),
    "pattern": ("show", "causl"),
    "lesson": ("lesson", "causl"),
    "example": ("walkthrough", "--example", "life"),
    "backend": ("plan", "--q-len", "8", "--backend", "flash"),
    "device": ("plan", "--q-len", "8", "--device", "tpu"),
    "case": ("bench", "plane"),
    "row": ("bench", "complexity", "sofmax"),
    "model": ("train", "translation", "--data", "pronouns", "--model", "gpt", "--out", "{new}"),
    "mechanism": ("train", "language-model", "--data", "{text}", "--mechanism", "perfomer(8)", "--out", "{new}"),
    "normalisation": ("translate", "{run}", "x", "--normalisation", "google"),
    "lens": ("translate", "{run}", "x", "--why", "a", "--instead", "b", "--lens", "magic"),
    "models": ("compare", "--data", "pronouns", "--models", "gpt", "--out", "{new}"),
}

KINDS = {  # what exists, and is of another kind, or is used already
    "generate with a translator": ("generate", "{run}", "x"),
    "classify with a translator": ("classify", "{run}", "x"),
    "column": ("train", "translation", "--data", "{csv}:english,french", "--out", "{new}"),
    "a header that nobody named": ("train", "translation", "--data", "{csv}", "--out", "{new}"),
    "suffix": ("train", "translation", "--data", "{file}", "--out", "{new}"),
    "a model in the folder": ("train", "translation", "--data", "{table}", "--out", "{run}"),
    "a file in its place": ("train", "translation", "--data", "{table}", "--out", "{file}"),
    "files in the folder": ("compare", "--data", "{table}", "--out", "{full}"),
    "combination": ("plan", "--q-len", "8", "--softcap", "30", "--backend", "fused"),
    "early mistake": ("train", "translation", "--data", "{table}", "--decoder-attention", "causl", "--out", "{new}"),
}


HEEDED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
START = HEEDED + "sys.argv = ['regard', *sys.argv[1:]]; from regard_lab.cli import main; main()"


def real(*words):
    """A Python of its own, in which nothing is imported yet."""
    return subprocess.Popen([sys.executable, "-c", START, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def places(tmp_path, run_folder):  # noqa: F811
    (tmp_path / "file").write_text("neither a run nor a table\n")
    (tmp_path / "table.tsv").write_text("".join(f"a {number}\tein {number}\n" for number in range(40)))
    (tmp_path / "text.txt").write_text("a few words of text\n" * 50)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    (tmp_path / "pairs.csv").write_text("id,english,german\n" + "".join(f"{n},a {n},ein {n}\n" for n in range(40)))
    return {
        "file": tmp_path / "file", "empty": tmp_path / "empty", "missing": tmp_path / "nowhere",
        "new": tmp_path / "new", "table": tmp_path / "table.tsv", "text": tmp_path / "text.txt", "run": run_folder,
        "full": tmp_path / "full", "csv": tmp_path / "pairs.csv",
    }  # fmt: skip


def assert_misused(arguments):
    answer = regard(*arguments)
    said = answer.stderr.decode()
    assert answer.returncode == 2, said
    assert "Traceback" not in said
    assert said.strip()


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_that_is_not_there_is_a_usage_error(name, what, places):
    assert_misused([str(places[what]) if word == RUN else word.format(**places) for word in COMMANDS[name]])


@pytest.mark.parametrize("command", ["generate", "translate", "classify", "evaluate"])
def test_a_folder_of_hugging_face_is_a_usage_error_that_says_where_to_use_it(command, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    answer = regard(command, tmp_path, "pairs.tsv")
    said = answer.stderr.decode()
    assert answer.returncode == 2, said
    assert f"{tmp_path} holds a model of Hugging Face" in said
    assert "docs/recipes/hugging-face.md" in said
    assert "damaged" not in said


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_there_is_a_usage_error(name, places):
    assert_misused([word.format(**places) for word in FILES[name]])
    assert not places["new"].exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_does_not_exist_is_a_usage_error(name, places):
    assert_misused([word.format(**places) for word in NAMES[name]])
    assert not places["new"].exists()


@pytest.mark.parametrize("name", KINDS)
def test_what_has_to_be_typed_otherwise_is_a_usage_error_and_is_told_before_data_are_read(name, places):
    arguments = [word.format(**places) for word in KINDS[name]]
    assert_misused(arguments)
    assert not places["new"].exists()
    assert b"kept" not in regard(*arguments).stderr


@pytest.mark.parametrize(
    ("start", "command"),
    [(real, ("show", "--list")), (Forked, ("lesson", "causal")), (Forked, ("walkthrough", "a b c"))],
)
def test_a_reader_that_leaves_ends_a_command_as_it_ends_other_programs(start, command):
    process = start(*command)
    process.stdout.close()
    _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (-signal.SIGPIPE, b"")


def test_a_damaged_run_is_a_failure_and_no_usage_error(run_folder, tmp_path):  # noqa: F811
    (tmp_path / "config.json").write_text("{}")
    answer = regard("translate", tmp_path, "x")
    assert answer.returncode == 1, answer.stderr


# Ctrl-C

BUSY = {
    "train": ("train", "translation", "--data", "pronouns", "--out", "{new}", "--cpu"),
    "demo": ("demo", "--out", "{new}"),
    "lesson": ("lesson", "approximations"),
    "bench": ("bench", "plain", "--out", "{new}"),
    "show": ("show", "causal"),
}


@pytest.mark.parametrize(
    ("name", "seconds"), [*((name, 0.3) for name in BUSY), ("show", 1.0), ("train", 1.0), ("train", 2.5), ("demo", 2.5)]
)
def test_ctrl_c_before_the_first_step_is_one_word(name, seconds, places):
    """Also while modules are imported; the waits are CPU seconds, so that a busy machine changes little."""
    arguments = [word.format(**places) for word in BUSY[name]]
    process = real(*arguments)
    while process.poll() is None and cpu_seconds(process.pid) < seconds:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    if process.returncode in (0, -signal.SIGINT):  # it was done before, or just then
        assert name in ("show", "lesson")
        return
    assert process.returncode == 130
    assert said.decode().splitlines()[-1] == "regard: interrupted"
    assert b"Traceback" not in said
    assert b"Exception" not in said


def cpu_seconds(process: int) -> float:
    try:
        with open(f"/proc/{process}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
    except OSError:
        return float("inf")
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
