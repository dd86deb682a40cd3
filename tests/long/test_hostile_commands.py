"""Hostile invocations of commands: a sample of each, what judges them, and those that once ended badly."""

import pytest

from regard.errors import DataError
from regard_lab.text import read_lines
from tests.long import commands
from tests.long.commands import Invocation
from tests.long.running import Found


def test_every_command_refuses_hostile_invocations(tmp_path):
    """A few of each command, from everywhere in its list."""
    found = commands.work(range(len(commands.names())), tmp_path, 2)
    found.add(commands.options(range(len(commands.OPTIONS)), tmp_path, 1))  # with the same inputs
    assert not found.wrong, found.wrong
    assert all(found.counts[f"regard {name}"] == 2 for name in commands.names())
    assert all(len(commands.of_option(label)) == commands.OF_OPTION for label in commands.OPTIONS)


def test_a_command_that_is_silent_for_long_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "SILENT", -1.0)
    assert "silent" in str(
        commands.judged(Invocation("", ("show", "causal")), {}, tmp_path / "case", Found())
    )


def test_a_command_that_ends_badly_is_found():
    one = commands.Invocation("--size x", ("show", "--size", "x"), ("--size",))
    assert commands.fault(one, 2, "regard: --size is x; it needs a number\n", []) is None
    for code, said, left, reason in (
        (1, "Traceback (most recent call last):\n", [], "a traceback"),
        (-11, "", [], "the exit code is -11"),
        (2, "", [], "0 characters"),
        (2, "regard: something is wrong\n", [], "without a name"),
        (2, "regard: --size is \x1b[2J\n", [], "control characters"),
        (2, "regard: --size is x\n" * 9, [], "9 lines"),
        (2, "regard: --size is x\n", ["new"], "leaves ['new']"),
        (0, "", [".new.writing-1"], "leaves"),
    ):
        assert reason in str(commands.fault(one, code, said, left))


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
    one, code, words = MENDED[name]
    found = commands.ended_with(one, {}, tmp_path / "case", Found())
    assert found[0] == code, found
    assert commands.fault(one, *found) is None
    assert words is None or words in found[1]


def test_a_file_that_opens_and_cannot_be_read_is_named():
    with pytest.raises(DataError, match="/proc/self/mem cannot be read"):
        list(read_lines("/proc/self/mem"))


def test_a_training_that_is_refused_writes_nothing(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"a {n} b\tein {n} c\n" for n in range(60)))
    settings = ("--model", "none", "--steps", "2", "--dim", "8", "--out", "new")
    words = ("train", "translation", "--data", str(pairs), *settings)
    found = commands.ended_with(
        Invocation("", words, environment={"RANK": "x"}), {}, tmp_path / "case", Found()
    )
    assert (found[0], "RANK is 'x'" in found[1], found[2]) == (2, True, []), found
