"""The tool of mutants itself: a mutant that differs is killed, and a survivor is found again in changed code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import CodeType, SimpleNamespace

import pytest

from tests.long.goals import GOALS
from tests.long.mutants import copies
from tests.long.mutants.again import found, place
from tests.long.mutants.answers import ANSWERS, NOW, answer, is_equal
from tests.long.mutants.copies import ROOT, copy_of_all, import_heavy
from tests.long.mutants.judging import Mutant, met
from tests.long.mutants.sites import sites

PATH = "regard/patterns/ranges.py"
SITE = next(one for one in sites((ROOT / PATH).read_bytes()) if one.kind == "comparison")


def judge_one(folder):
    import_heavy()
    copy = copy_of_all(folder)
    whole = (copy / PATH).read_bytes()
    for site, code in ((SITE, 1), (replace(SITE, after=SITE.before), 0)):
        assert met(Mutant(0, "patterns", PATH, site), copy, ["-x", PATH], object(), 60) == code
        assert (copy / PATH).read_bytes() == whole


def test_a_mutant_fails_the_examples_of_its_file_and_leaves_the_copy_as_it_was(tmp_path):
    """In a process of its own, as the tool runs; in a fork of this one pytest has ended with signal 11."""
    code = (
        f"from pathlib import Path\nfrom tests.long.test_mutants import judge_one\njudge_one(Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", ["regard/patterns/tiles.py", "regard/backends/fused.py", "regard/layers/caches/state.py"]
)
def test_the_function_around_a_place_is_called_as_python_calls_it(path):
    source = (ROOT / path).read_bytes()
    codes, names = [compile(source, path, "exec")], set()
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        names.add(code.co_qualname)
    inside = {one.function for one in sites(source)} - {""}
    assert len(inside) > 3
    assert inside <= names


def test_a_survivor_is_found_again_where_its_line_has_moved():
    sentence = f"mutant 7, {PATH}:{{}}: {SITE} (survived: 3 tests passed)"
    again = found(sentence.format(SITE.line + 40))
    assert again is not None
    assert (again.number, again.path, again.site) == (7, PATH, SITE)
    assert found(sentence.format(1).replace(" -> ", " --> ")) is None
    assert found("mutant 7, regard/nowhere.py:1: a -> b (survived: 3 tests passed)") is None


def test_of_equal_changes_the_nearest_is_found():
    path = "regard/patterns/tiles.py"
    every = sites((ROOT / path).read_bytes())
    first, last = next((one, other) for one in every for other in reversed(every) if other.line > one.line + 20
                       if str(one) == str(other))  # fmt: skip
    for site in (first, last):
        again = found(f"mutant 7, {path}:{site.line + 2}: {site} (survived: 3 tests passed)")
        assert again is not None
        assert again.site.line == site.line


@pytest.mark.parametrize("said", sorted({said for said in ANSWERS.values() if said.startswith(NOW)}))
def test_the_test_that_an_answer_names_is_there(said):
    assert place(re.findall(r"test_\w+", said)[0]), said


def test_mutants_with_equal_results_do_not_count_against_the_tests():
    (goal,) = (goal for goal in GOALS if goal.name == "Mutants")
    equal = "mutant 70, regard/bias.py:166: (-distances).clamp_min -> -distances.clamp_max (survived: 14 tests passed)"
    other = "mutant 1, regard_lab/cli/demo.py:59: a -> b (survived: 2 tests passed)"
    assert is_equal(equal)
    assert not is_equal(other)
    assert answer(other).startswith("a number or a line of the demo")
    record = {"counts": {"killed": 260, "timed out": 9}, "cases": 300, "noted": [equal] * 2 + [other] * 29}
    assert goal.read({"mutants": record}) == (
        "269 of 300 mutants killed, and 2 others give equal results: 90% of those that differ; "
        "29 of the 29 survivors are answered below",
        True,
    )
    assert not goal.read({"mutants": {**record, "counts": {"killed": 260, "timed out": 8}}})[1]


def test_a_fork_that_waits_for_ever_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "IDLE", 1.0)
    began = time.monotonic()
    assert copies.in_fork(tmp_path, lambda: time.sleep(600) or 0, 60, tmp_path / "log") == -signal.SIGKILL
    assert time.monotonic() - began < 60


def test_a_fork_that_works_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "IDLE", 2.0)  # on a busy machine a fork can wait a second for its turn

    def work():
        while time.process_time() < 3:
            pass
        return 7

    assert copies.in_fork(tmp_path, work, 60, tmp_path / "log") == 7


def test_a_fork_is_not_idle_while_the_whole_machine_stands_still(tmp_path, monkeypatch):
    calls = 0

    def monotonic():  # 100 s pass before each of five readings of the clock
        nonlocal calls
        calls += 1
        return time.monotonic() + 100 * min(calls - 1, 5)

    monkeypatch.setattr(copies, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    assert copies.in_fork(tmp_path, lambda: time.sleep(1) or 7, 600, tmp_path / "log") == 7
