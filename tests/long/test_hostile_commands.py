"""Hostile invocations of commands: a sample of each, what judges them, and those that once ended badly."""

import pytest

from regard.errors import DataError
from regard_lab.text import read_lines
from tests.long import commands
from tests.long.commands import Ending, Invocation
from tests.long.running import Found


def test_every_command_refuses_hostile_invocations(tmp_path):
    """A few of each command, from everywhere in its list."""
    found = commands.work(range(len(commands.names())), tmp_path, 2)
    found.add(commands.options(range(len(commands.OPTIONS)), tmp_path, 1))  # with the same inputs
    assert not found.wrong, found.wrong
    for name in commands.names():
        assert found.counts[f"regard {name}"] == 2
    for label in commands.OPTIONS:
        assert len(commands.of_option(label)) == commands.OF_OPTION


def test_a_command_that_is_silent_for_long_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "LONGEST_SILENCE", -1.0)
    show = Invocation("", ("show", "causal"))
    assert "silent" in str(commands.judge(show, {}, tmp_path / "case", Found()))


SIZE_X = Invocation("--size x", ("show", "--size", "x"), ("--size",))


@pytest.mark.parametrize(
    ("code", "said", "left", "fault"),
    [
        (1, "Traceback (most recent call last):\n", [], "a traceback"),
        (-11, "", [], "the exit code is -11"),
        (2, "", [], "0 characters"),
        (2, "regard: something is wrong\n", [], "without a name"),
        (2, "regard: --size is \x1b[2J\n", [], "control characters"),
        (2, "regard: --size is x\n" * 9, [], "9 lines"),
        (2, "regard: --size is x\n", ["new"], "leaves ['new']"),
        (0, "", [".new.writing-1"], "leaves"),
        (2, "regard: --size is x; it needs a number\n", [], "None"),
    ],
)
def test_a_command_that_ends_badly_is_found(code, said, left, fault):
    assert fault in str(commands.fault_of(SIZE_X, Ending(code, said, left)))


PLAN = ("plan", "--q-len", "8")
MENDED = {
    "a closed output": (
        Invocation("", ("show", "causal"), stdout="closed"),
        1,
        "standard output: Bad file descriptor",
    ),
    "a closed error": (Invocation("", (*PLAN, "-Z"), stderr="closed"), 2, None),
    "a full error": (Invocation("", (*PLAN, "--backend", "x"), stderr="/dev/full"), 2, None),
    "a long word": (Invocation("", ("show", "causal", "x" * 10_000)), 2, "'xxx"),
    "half a character": (
        Invocation("", (*PLAN, "--pattern", "\udcff")),
        2,
        "--pattern is '\\udcff', which is not",
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_once_ended_badly_ends_in_a_sentence(name, tmp_path):
    invocation, code, words = MENDED[name]
    ending = commands.run(invocation, {}, tmp_path / "case", Found())
    assert ending.code == code, ending
    assert commands.fault_of(invocation, ending) is None
    assert words is None or words in ending.said


def test_a_file_that_opens_and_cannot_be_read_is_named():
    with pytest.raises(DataError, match="/proc/self/mem cannot be read"):
        list(read_lines("/proc/self/mem"))


def test_a_training_that_is_refused_writes_nothing(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"a {n} b\tein {n} c\n" for n in range(60)))
    settings = ("--model", "none", "--steps", "2", "--dim", "8", "--out", "new")
    words = ("train", "translation", "--data", str(pairs), *settings)
    train = Invocation("", words, environment={"RANK": "x"})
    ending = commands.run(train, {}, tmp_path / "case", Found())
    assert ending.code == 2, ending
    assert "RANK is 'x'" in ending.said
    assert not ending.left
