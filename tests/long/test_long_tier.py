"""Short forms of the long runs, the runner, and the table that is made from its file."""

import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from docs.making import studies
from tests.long import commands, pytests, runs
from tests.long.__main__ import main
from tests.long.hostile import judge
from tests.long.hostile_files import FILES, READERS
from tests.long.mutant_sites import sites
from tests.long.mutants import ROOMS, Mutant, copy_of_all, judged, mutant, places_of
from tests.long.running import Found, Run, read
from tests.long.runs import RUNS

ROOT = Path(__file__).parents[2]


# The file and its page


def test_each_run_names_a_function_and_tests_that_are_there():
    for run in RUNS.values():
        module, _, function = run.place.rpartition(".")
        source = ROOT / "tests" / "long" / f"{module.replace('.', '/')}.py"
        assert f"def {function}(" in source.read_text("utf-8"), run
        for word in " ".join(run.options).replace("|", " ").split():
            assert "/" not in word or (ROOT / word).exists(), word


def test_every_run_was_run_and_nothing_was_wrong():
    records = read()["runs"]
    assert set(records) == set(RUNS)
    assert not {name: record["wrong"] for name, record in records.items() if record["wrong"]}


def test_every_part_of_the_suite_is_run_in_poisoned_memory():
    tests = (path.relative_to(ROOT).parts[:3] for path in (ROOT / "tests").glob("*/*/**/test_*.py"))
    whole = {"tests/regard/test_*.py", "tests/regard_lab/test_*.py", "regard", "regard_lab"}
    assert set(pytests.FOLDERS) == {"/".join(parts) for parts in tests} | whole


def test_every_slow_test_is_in_a_run():
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)}
    slow = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "pytest.mark.slow" in path.read_text("utf-8")
    }
    paths = [
        word
        for run in RUNS.values()
        for one in run.options
        if "|slow|" in one
        for word in one.split("|")
    ]
    assert {
        one for one in slow if not one.startswith(tuple(path for path in paths if "/" in path))
    } == set()
    assert {path.partition("|")[0] for path in pytests.SLOW} <= slow


def test_the_page_shows_the_file():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    for part in (studies.reliability, studies.reliability_summary):
        assert part() in page, "make figures"
    assert page.count("\n| ") == 1 + len(RUNS)


def test_the_number_of_hostile_files_is_that_of_the_run():
    assert len(FILES) == runs.FILES


# The runner


def counted(numbers: Sequence[int], folder: Path) -> Found:
    found = Found()
    found.count("cases", len(numbers))
    if 7 in numbers:
        found.wrong.append("case 7 is off")
    return found


@pytest.fixture
def counting(monkeypatch):
    run = Run("texts", "counts", "cases", 10, 3, "runs.none")
    monkeypatch.setitem(RUNS, "texts", run)
    monkeypatch.setattr(Run, "work", lambda self, numbers, folder: counted(numbers, folder))
    return run


def test_a_run_goes_on_where_it_stopped_and_says_what_was_wrong(tmp_path, counting, capsys):
    path = tmp_path / "r.json"
    assert main(["texts", "--cases", "5", "--results", str(path)]) == 0
    assert read(path)["runs"]["texts"]["done"] == [[0, 5]]
    assert main(["texts", "--results", str(path)]) == 1
    assert "case 7 is off" in capsys.readouterr().out
    record = read(path)["runs"]["texts"]
    assert (record["done"], record["cases"], record["counts"]) == ([[0, 10]], 10, {"cases": 10})
    assert record["wrong"] == ["case 7 is off"]
    assert main(["texts", "--fresh", "--cases", "2", "--results", str(path)]) == 0
    assert read(path)["runs"]["texts"]["cases"] == 2


def test_an_interruption_keeps_what_was_done(tmp_path, counting, monkeypatch, capsys):
    def work(self, numbers, folder):
        if numbers[0] >= 3:
            raise KeyboardInterrupt
        return counted(numbers, folder)

    monkeypatch.setattr(Run, "work", work)
    path = tmp_path / "r.json"
    assert main(["texts", "--results", str(path)]) == 130
    assert "goes on with the batch" in capsys.readouterr().err
    assert read(path)["runs"]["texts"]["done"] == [[0, 3]]


@pytest.mark.parametrize(
    "words", [["nothing"], ["texts", "--minutes", "51"], ["texts", "--shard", "3/2"]]
)
def test_what_cannot_be_run_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert re.search("there is no run|at most 50|is no shard", capsys.readouterr().err)


# Short forms


def short(name: str, numbers: Sequence[int], folder: Path) -> Found:
    found = RUNS[name].work(numbers, folder)
    assert not found.wrong, found.wrong
    return found


def test_random_calls_equal_the_formulas(tmp_path):
    counts = short("oracle", range(10), tmp_path).counts
    assert counts["gradient comparisons"] > 2
    assert counts["right"] > 10


def test_flipped_bits_change_nothing_unnoticed(tmp_path):
    assert short("flips", range(60), tmp_path).counts["refused"] > 40


def test_hostile_files_are_refused_and_nothing_else_happens(tmp_path):
    some = range(0, len(FILES), 5)
    assert short("hostile", some, tmp_path).counts["refused"] == len(some)


def test_the_watch_notices_what_a_hostile_file_could_do(tmp_path, monkeypatch):
    """A negative control: a reader that does it is caught."""
    kind, make = FILES["tensors: nothing"]
    (tmp_path / kind).write_bytes(b"")
    for name, act in (
        ("import", lambda path: __import__("antigravity")),
        ("open", lambda path: Path("/etc/hostname").read_text()),
        ("open", lambda path: path.write_text("x")),
        ("os.system", lambda path: os.system("true")),
        ("pickle.find_class", lambda path: pickle.loads(pickle.dumps(re.compile))),
        ("socket", lambda path: __import__("socket").socket()),
        ("it was read", lambda path: None),
    ):
        reads = iter([lambda path: None, act])
        monkeypatch.setitem(READERS, kind, (lambda path, reads=reads: next(reads)(path), make))
        assert name in str(judge("tensors: nothing", tmp_path, Found()))


def test_faults_of_every_kind_leave_the_checkpoint_before_them(tmp_path):
    counts = short("faults", range(14), tmp_path).counts
    assert sum(number for name, number in counts.items() if "stopped the training" in name) > 5
    assert counts["checkpoints that were there and load"] > 3


def test_texts_are_refused_by_sentences(tmp_path):
    counts = short("texts", range(400), tmp_path).counts
    assert counts["patterns"] > 40
    assert counts["refused"] > 100


def test_every_law_and_command_has_a_number_and_its_examples_are_counted():
    assert RUNS["laws"].cases == len(pytests.law_names()) >= 12
    assert RUNS["commands"].cases == 2 * len(commands.names())
    told = (
        "a.py::test_one[x]:\n\n  - during generate phase (1 seconds):\n    - 1000 passing, 0 failing, and 3 invalid "
        "test cases\n  - Stopped because settings.max_examples=1000\na.py::test_two:\n    - 8 passing, 0 failing, and "
        "80 invalid test cases\n    * 90.00%, gave up because: failed to satisfy assume()\n"
    )
    found = Found()
    pytests.count_examples(told, found)
    assert found.counts == {"law one[x]": 1000, "law two": 8, "refused": 83}
    assert found.noted == [
        "two: 8 examples, 80 refused; 90.00%, gave up because: failed to satisfy assume()"
    ]


# A mutant that differs is killed, and one that does not survives

PATH = "regard/patterns/ranges.py"
SITE = next(one for one in sites((ROOT / PATH).read_bytes()) if one.kind == "comparison")


def test_a_mutant_fails_the_examples_of_its_file_and_leaves_the_copy_as_it_was(tmp_path):
    copy = copy_of_all(tmp_path)
    whole = (copy / PATH).read_bytes()
    for site, verdict in ((SITE, "killed"), (replace(SITE, after=SITE.before), "survived")):
        assert judged(Mutant(0, "patterns", PATH, site), copy, [PATH])[0] == verdict
        assert (copy / PATH).read_bytes() == whole


@pytest.mark.parametrize("number", range(len(ROOMS)))
def test_every_room_has_a_place_and_tests(number):
    one = mutant(number)
    assert (one.room, mutant(number)) == (list(ROOMS)[number], one)
    assert all((ROOT / path).exists() for path in places_of(one))
