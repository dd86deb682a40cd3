"""Every command draws and answers in any encoding and width, with plain characters where others are lacking."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from test_commands import run_folder  # noqa: F401

from regard_lab.cli import main

PLAIN = [
    ("show", "causal_window(3)", "--layers", "2"),
    ("show", "per_head(causal, full)", "--length", "60"),
    ("show", "--list"),
    ("plan", "--q-len", "64", "--pattern", "causal"),
    ("walkthrough", "Life is short, eat dessert first"),
    ("walkthrough", "Das Tier überquert die Straße – müde…", "--columns"),
    ("walkthrough", "a b", "--whole", "--dim", "4", "--heads", "2"),
    ("lesson", "--list"),
    *(("lesson", name) for name in ("causal", "scale", "cross", "windows", "positions")),
    ("translate", "{run}", "the animal sleeps", "ein Gefühl"),
    ("translate", "{run}", "the animal sleeps", "--json"),
    ("translate", "{run}", "the animal sleeps", "--map", "cross"),
    ("evaluate", "{run}", "{pairs}"),
    ("approximation", "{tensors}", "--candidate", "sliding_window(4)"),
    ("convert", "kv-heads", "{run}", "--kv-heads", "1", "--out", "{new}"),
    ("doctor",),
    ("show", "cäusal ■"),
    ("translate", "nirgendwo ■", "x"),
]
ENVIRONMENTS = [("ascii", 80), ("cp1252", 40)]


@pytest.fixture
def regard(run_folder, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "pairs.tsv").write_text("a street\teine Straße\n", encoding="utf-8")
    save_file({name: torch.randn(1, 2, 16, 4) for name in "qkv"}, tmp_path / "t.safetensors")
    places = {"run": run_folder, "pairs": tmp_path / "pairs.tsv", "tensors": tmp_path / "t.safetensors"}
    places["new"] = tmp_path / "new"

    def run(arguments, encoding, width):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        monkeypatch.setattr(sys, "argv", ["regard", *(word.format(**places) for word in arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        for stream in streams:
            stream.flush()
        return leaving.value.code, *(stream.buffer.getvalue().decode(encoding) for stream in streams)

    return run


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
@pytest.mark.parametrize(("encoding", "width"), ENVIRONMENTS)
def test_every_command_answers_in_every_encoding_and_width(regard, arguments, encoding, width):
    code, answer, said = regard(arguments, encoding, width)
    assert code == (2 if "■" in " ".join(arguments) else 0), said
    assert answer or said
    assert "Traceback" not in said


@pytest.mark.parametrize("width", [30, 40, 80, 200])
@pytest.mark.parametrize("pattern", ["causal & (sliding_window(16) | global_tokens(0))", "per_head(causal, full)"])
@pytest.mark.parametrize("length", [8, 40, 200])
def test_a_drawing_fits_the_width(regard, width, pattern, length):
    _, answer, _ = regard(("show", pattern, "--length", str(length), "--layers", "3"), "utf-8", width)
    assert max(map(len, answer.splitlines())) <= width


def test_plain_characters_stand_for_the_same_pairs(regard):
    drawn = [regard(("show", "causal_window(3)", "--layers", "2"), encoding, 80)[1] for encoding in ("utf-8", "ascii")]
    assert drawn[0].translate(str.maketrans("■□·", "#o.")) == drawn[1]
    assert not drawn[0].isascii()


def test_a_character_for_several_pairs_says_whether_all_some_or_none_are_allowed(regard):
    _, answer, _ = regard(("show", "causal", "--length", "64"), "ascii", 24)
    lines = answer.splitlines()
    assert "Each character stands for 4 x 4 pairs" in " ".join(lines)
    rows = [line.split()[1] for line in lines if line.strip()[:1].isdigit() and set(line.split()[-1]) <= set("#+.")]
    for number, row in enumerate(rows):
        assert row == "#" * number + "+" + "." * (len(rows) - number - 1)


def test_every_head_is_drawn(regard):
    _, answer, _ = regard(("show", "per_head(causal, full, causal, prefix(1))", "--length", "4"), "utf-8", 80)
    titles = [line for line in answer.splitlines() if line.startswith("head")]
    assert titles == [
        "heads 0, 2: causal, 10 of 16 pairs", "head 1: full, 16 of 16 pairs", "head 3: prefix(1), 4 of 16 pairs"
    ]  # fmt: skip
    assert answer.count("■") == 10 + 16 + 4


def test_json_keeps_its_values_in_every_encoding(regard):
    arguments = ("translate", "{run}", "das Gefühl", "--json")
    values = [json.loads(regard(arguments, encoding, 80)[1]) for encoding in ("utf-8", "ascii", "cp1252")]
    assert values[0] == values[1] == values[2]
    assert values[0]["source"] == "das Gefühl"


def test_what_an_encoding_lacks_is_remarked_once(monkeypatch):
    from regard_lab.cli import console

    stream, told = io.TextIOWrapper(io.BytesIO(), encoding="ascii"), []
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(console, "note", told.append)
    monkeypatch.setattr(console, "_REMARKED", set())
    for text in ("plain", "Gefühl", "Straße"):
        console.remark_escapes(text)
    assert len(told) == 1
    assert "standard output is written in ascii" in told[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"PYTHONIOENCODING": "cp1252", "TERM": "dumb"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "NO_COLOR": "1"},
    ],
)
def test_real_environments(changed):
    program = """
import os, sys
import torch
from regard_lab.cli import main
for words in (["show", "causal"], ["lesson", "windows"], ["show", sys.argv[1]]):
    child = os.fork()
    if child == 0:
        sys.argv = ["regard", *words]
        main()
    print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    alone = {"OMP_NUM_THREADS": "1"}  # a fork has no other threads, and would wait for them
    answer = subprocess.run(
        [sys.executable, "-c", program, "cäusal"], env=os.environ | alone | changed, capture_output=True, check=False
    )
    assert b"Traceback" not in answer.stderr
    assert [line for line in answer.stdout.splitlines() if line.startswith(b"code")] == [
        b"code 0",
        b"code 0",
        b"code 2",
    ]
