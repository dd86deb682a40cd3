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
from tests.long.hostile import what_was_reached
from tests.long.hostile_files import FILES, READERS
from tests.long.mutant_sites import sites
from tests.long.mutants import ROOMS, Mutant, copy_of_all, judge_mutant, mutant, paths_of_tests
from tests.long.named_mutants import NamedMutant, every_mutant, missed_failures
from tests.long.running import Found, LongRun, read
from tests.long.runs import RUNS

ROOT = Path(__file__).parents[2]


# The file and its page


def test_each_run_names_a_function_and_tests_that_are_there():
    for run in RUNS.values():
        module, _, function = run.place.rpartition(".")
        source = (ROOT / "tests" / "long" / f"{module}.py").read_text("utf-8")
        assert re.search(rf"def {function}\(|import [\w, ]*\b{function}\b", source), run
        for path in paths_of(run):
            assert (ROOT / path).exists(), path


def paths_of(run: LongRun) -> list[str]:
    """The files and folders of tests that a run names."""
    words = " ".join(run.options).replace("|", " ").split()
    return [word for word in words if "/" in word]


def test_every_run_was_run_and_nothing_was_wrong():
    records = read()["runs"]
    # Where a machine lacks what a run needs, it is skipped and leaves no record.
    elsewhere = {name for name, run in RUNS.items() if run.needs}
    assert set(records) | elsewhere == set(RUNS)
    assert not {name: record["wrong"] for name, record in records.items() if record["wrong"]}


def test_every_part_of_the_suite_is_run_in_poisoned_memory():
    tests = (path.relative_to(ROOT).parts[:3] for path in (ROOT / "tests").glob("*/*/**/test_*.py"))
    whole = {"tests/regard/test_*.py", "tests/regard_lab/test_*.py", "regard", "regard_lab"}
    assert set(pytests.FOLDERS) == {"/".join(parts) for parts in tests} | whole


def test_every_slow_test_is_in_a_run():
    slow = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text("utf-8")
        if path != Path(__file__) and ("pytest.mark.slow" in text or "slow_except(" in text):
            slow.add(path.relative_to(ROOT).as_posix())
    named = set()
    for run in RUNS.values():
        named |= {option.rpartition("|")[2] for option in run.options if "|slow|" in option}
    assert not [path for path in slow if not path.startswith(tuple(named))]
    assert set(pytests.SLOW) <= slow


def test_the_page_shows_the_file():
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    for part in (studies.reliability, studies.reliability_summary):
        assert part() in page, "make figures"
    assert page.count("\n| ") == 1 + len(read()["runs"])


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
def run_texts(monkeypatch, tmp_path):
    """Runs the command for a run of 10 cases in batches of 3; returns its exit code and its record."""
    monkeypatch.setitem(RUNS, "texts", LongRun("texts", "counts", "cases", 10, 3, "runs.none"))
    monkeypatch.setattr(LongRun, "work", lambda run, numbers, folder: counted(numbers, folder))
    path = tmp_path / "results.json"

    def run_command(*words):
        code = main(["texts", *words, "--results", str(path)])
        return code, read(path)["runs"]["texts"]

    return run_command


def test_a_run_goes_on_where_it_stopped_and_says_what_was_wrong(run_texts, capsys):
    code, record = run_texts("--cases", "5")
    assert code == 0
    assert record["done"] == [[0, 5]]

    code, record = run_texts()
    assert code == 1
    assert "case 7 is off" in capsys.readouterr().out
    assert record["wrong"] == ["case 7 is off"]
    assert record["done"] == [[0, 10]]
    assert record["cases"] == 10
    assert record["counts"] == {"cases": 10}

    code, record = run_texts("--fresh", "--cases", "2")
    assert code == 0
    assert record["cases"] == 2


def test_an_interruption_keeps_what_was_done(run_texts, monkeypatch, capsys):
    def work(run, numbers, folder):
        if numbers[0] >= 3:
            raise KeyboardInterrupt
        return counted(numbers, folder)

    monkeypatch.setattr(LongRun, "work", work)
    code, record = run_texts()
    assert code == 130
    assert "goes on with the batch" in capsys.readouterr().err
    assert record["done"] == [[0, 3]]


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


@pytest.mark.parametrize(
    ("event", "act"),
    [
        ("import", lambda path: __import__("antigravity")),
        ("open", lambda path: Path("/etc/hostname").read_text()),
        ("open", lambda path: path.write_text("x")),
        ("os.system", lambda path: os.system("true")),
        ("pickle.find_class", lambda path: pickle.loads(pickle.dumps(re.compile))),
        ("socket", lambda path: __import__("socket").socket()),
        ("it was read", lambda path: None),
    ],
)
def test_the_watch_notices_what_a_hostile_file_could_do(event, act, tmp_path, monkeypatch):
    """A negative control: a reader that does it is caught."""
    kind, make = FILES["tensors: nothing"]
    harmless = tmp_path / kind
    harmless.write_bytes(b"")

    def read(path: Path) -> None:
        if path != harmless:
            act(path)

    monkeypatch.setitem(READERS, kind, (read, make))
    assert event in str(what_was_reached("tensors: nothing", tmp_path, Found()))


def test_faults_of_every_kind_leave_the_checkpoint_before_them(tmp_path):
    counts = short("faults", range(14), tmp_path).counts
    assert sum(number for name, number in counts.items() if "stopped the training" in name) > 5
    assert counts["checkpoints that were there and load"] > 3


def test_texts_are_refused_by_sentences(tmp_path):
    counts = short("texts", range(400), tmp_path).counts
    assert counts["patterns"] > 40
    assert counts["refused"] > 100


def test_every_law_and_command_has_a_number():
    assert RUNS["laws"].cases == len(pytests.law_names()) >= 12
    assert RUNS["commands"].cases == 2 * len(commands.names())


STATISTICS = """
a.py::test_one[x]:

  - during generate phase (1 seconds):
    - 1000 passing, 0 failing, and 3 invalid test cases
  - Stopped because settings.max_examples=1000
a.py::test_two:
    - 8 passing, 0 failing, and 80 invalid test cases
    * 90.00%, gave up because: failed to satisfy assume()
"""


def test_the_examples_of_a_law_are_counted_and_few_ones_noted():
    found = Found()
    pytests.count_examples(STATISTICS, found)
    assert found.counts == {"law one[x]": 1000, "law two": 8, "refused": 83}
    assert found.noted == [
        "two: 8 examples, 80 refused; 90.00%, gave up because: failed to satisfy assume()"
    ]


# A mutant that differs is killed, and one that does not survives

PATH = "regard/patterns/ranges.py"
COMPARISON = next(site for site in sites((ROOT / PATH).read_bytes()) if site.kind == "comparison")
NO_CHANGE = replace(COMPARISON, after=COMPARISON.before)


def test_a_mutant_fails_the_examples_of_its_file_and_leaves_the_copy_as_it_was(tmp_path):
    copy = copy_of_all(tmp_path)
    whole = (copy / PATH).read_bytes()
    for site, expected in ((COMPARISON, "killed"), (NO_CHANGE, "survived")):
        verdict, _ = judge_mutant(Mutant(0, "patterns", PATH, site), copy, [PATH])
        assert verdict == expected
        assert (copy / PATH).read_bytes() == whole


@pytest.mark.parametrize("number", range(len(ROOMS)))
def test_every_room_has_a_place_and_tests(number):
    drawn = mutant(number)
    assert drawn == mutant(number)
    assert drawn.room == list(ROOMS)[number]
    for path in paths_of_tests(drawn):
        assert (ROOT / path).exists()


# Faults that are written down


FAULTS = range(len(every_mutant()))


@pytest.fixture(scope="module")
def copy_for_faults(tmp_path_factory):
    return copy_of_all(tmp_path_factory.mktemp("copy"))


def test_a_fault_is_noticed_by_its_test_alone(copy_for_faults):
    tests = (
        "regard/test_positions.py::test_learned_vectors_begin_small_and_around_zero",
        "regard/test_positions.py::test_learned_refuses_positions_without_a_vector",
    )
    fault = NamedMutant("regard/positions.py", "dim) * 0.02", "dim) * 0.2", tests)
    missed, _ = missed_failures(fault, copy_for_faults)
    assert missed == [f"tests/{tests[1]}"]


@pytest.mark.parametrize("number", FAULTS)
def test_every_fault_has_one_place_compiles_and_names_tests_that_are_there(number):
    fault = every_mutant()[number]
    source = (ROOT / fault.path).read_bytes()
    changed = fault.applied(source)
    assert changed != source
    compile(changed, fault.path, "exec")
    for path in fault.paths_of_tests:
        file, _, name = path.partition("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8"), path


@pytest.mark.slow
@pytest.mark.parametrize("number", FAULTS)
def test_every_fault_fails_the_tests_that_are_meant_for_it(copy_for_faults, number):
    missed, printed = missed_failures(every_mutant()[number], copy_for_faults)
    assert not missed, printed
