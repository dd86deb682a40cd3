"""`regard bench`, `doctor` and `lenses`: what they measure, print and write."""

import json
from dataclasses import replace
from functools import cache

import pytest
from commanding import printed, regard, succeeded

from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core.backend import Refusal
from regard_lab.bench import running
from regard_lab.bench.measuring import Pace
from regard_lab.bench.peaks import Peaks
from regard_lab.bench.work import Case
from regard_lab.cli import bench, evaluate
from regard_lab.seeing.lens_study import LensReport

# --- bench; the contests are small here


def record(case, contest, status="measured"):
    times = {"median": 0.002, "low": 0.001, "high": 0.004, "samples": [0.001, 0.002, 0.004]}
    ours = {"status": status, "reason": "off", "cpu": times, "wall": times}
    return {
        "label": f"{case} {contest}",
        "work": f"{contest} queries",
        "family": case,
        "length": contest,
        "ours": "regard",
        "contenders": {"regard": ours},
        "promises": [],
    }


@pytest.fixture
def held(monkeypatch):
    """Two small cases, and the list of the contests held; "interrupt" in it interrupts the second case."""
    done = []

    def hold(case, contest, *, quick, tell):
        if "interrupt" in done and case.name == "second":
            raise KeyboardInterrupt
        done.append(f"{case.name} {contest}")
        return record(case.name, contest, "wrong" if "wrong" in done else "measured")

    cases = {name: Case(name, f"Case {name}", (1, 2), (1,)) for name in ("first", "second")}
    monkeypatch.setattr(running, "cases_on", lambda device: cases)
    monkeypatch.setattr(
        running, "contests_of", lambda case, quick: case.quick if quick else case.contests
    )
    monkeypatch.setattr(running, "hold", hold)
    # Two measurements of a processor differ.
    peaks = Peaks(2.0, 3.0, 5.0, 4.0, 1.0, "a loop", "a loop")
    monkeypatch.setattr(running, "measure_peaks", lambda: peaks)
    return done


def test_bench_reports_and_writes(held, tmp_path):
    assert "Case first" in succeeded("bench", "first", "--quick", "--out", tmp_path).out
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}
    written = json.loads((tmp_path / "bench.json").read_text())
    shown = printed("bench", "first", "--quick", "--out", tmp_path)
    assert shown | {"sha256": written["sha256"]} == written
    held.append("wrong")
    answer = regard("bench", "first", "--out", tmp_path / "wrong")
    assert (
        answer.returncode,
        "regard was wrong or failed: first 1: regard wrong: off" in answer.err,
    ) == (1, True)


def test_an_interruption_of_bench_names_how_to_go_on(held, tmp_path):
    held.append("interrupt")
    answer = regard("bench", "--out", tmp_path)
    assert (answer.returncode, "--resume goes on" in answer.err) == (130, True)
    held.clear()
    succeeded("bench", "--out", tmp_path, "--resume")
    assert held == ["second 1", "second 2"]


def test_one_real_case_from_start_to_end(tmp_path, monkeypatch):
    once = Pace(rounds=1, slow_rounds=1, shortest=0.002)
    monkeypatch.setattr(running, "QUICK_CPU_PACE", once)
    monkeypatch.setattr(running, "QUICK_WALL_PACE", once)
    answer = succeeded("bench", "overhead", "--quick", "--out", tmp_path, "--json")
    contest = json.loads(answer.out)["cases"]["overhead"]["contests"][0]
    assert {contender["status"] for contender in contest["contenders"].values()} == {"measured"}
    assert all(contender["cpu"]["median"] > 0 for contender in contest["contenders"].values())


# --- doctor


class Negative:
    """The reference with its sign turned, where no gradient is asked."""

    name = "negative"

    def assess(self, problem):
        offer = BACKENDS["reference"].assess(problem)
        if problem.needs_grad:
            return Refusal("it sends no gradients")
        return replace(
            offer,
            run=lambda operands: (result := offer.run(operands))._replace(output=-result.output),
        )


def test_doctor_shows_versions_and_backends_and_fails_where_one_is_wrong(monkeypatch):
    # both forms show one examination
    examine_once = cache(bench.examine)
    monkeypatch.setattr(bench, "examine", examine_once)
    text = succeeded("doctor").out
    assert all(f"  {name} on cpu: " in text for name in BACKENDS)
    assert all(word in text for word in ("torch", "Python", "thread", "numpy"))
    rows = printed("doctor")["backends"]
    status = {row["backend"]: row["status"] for row in rows if row["device"] == "cpu"}
    assert status.keys() == BACKENDS.keys()
    absent = {"flex", "fla", *(["native"] if isinstance(load(), str) else [])}
    assert {name for name, said in status.items() if said == "refused"} == absent
    assert {said for name, said in status.items() if name not in absent} == {"ok"}
    # the others were examined above
    for name in BACKENDS.keys() - {"reference"}:
        monkeypatch.delitem(BACKENDS, name)
    monkeypatch.setitem(BACKENDS, "negative", Negative())
    examine_once.cache_clear()
    for option in ([], ["--json"]):
        answer = regard("doctor", *option)
        assert (answer.returncode, "wrong answers from negative" in answer.last) == (1, True)


# --- lenses


def test_the_table_of_lenses_names_what_was_measured(run_folder, tmp_path, monkeypatch):
    row = {
        "top": 0.5,
        "order": 0.25,
        "cause": 0.75,
        "deletion": 0.125,
        "passes": 16.0,
        "backward_passes": 2.0,
    }
    routes = {
        "last": {"nothing": 0.9, "source": 0.3},
        "first": {},
        "counts": [9, 0],
        "verified": 7,
        "of": 9,
    }

    def study(translator, *, sentences=200, seed=0, out=None, name, tell):
        report = LensReport(
            name, "abc", sentences, seed, right=9, agreement=0.96, heads={"cross": [1, 3]}
        )
        report.routes, report.rows = routes, {"erase": row}
        report.save(out)
        return report

    monkeypatch.setattr(evaluate, "study_lenses", study)
    shown = succeeded("lenses", run_folder, "--sentences", 10, "--out", tmp_path / "report").out
    for part in (
        "erasure",
        "0.250",
        "16 + 2",
        "9 of 10 test sentences",
        "0.960",
        "layer 1, head 3",
        "0.300",
        "of 7 ",
    ):
        assert part in shown, part
    assert (tmp_path / "report" / "lenses.md").exists()
    assert printed("lenses", run_folder)["rows"]["erase"]["cause"] == 0.75
