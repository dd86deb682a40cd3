"""Finished cases are written, an interrupted run goes on, and what was measured elsewhere is not mixed in."""

import pytest

from regard.errors import ArgumentError, DataError, OccupiedError, UnsupportedError
from regard_lab.bench import running
from regard_lab.bench.running import run_bench
from regard_lab.bench.work import Case


def record(case, n=1, status="measured"):
    times = {"median": 0.002, "low": 0.001, "high": 0.004, "samples": [0.001, 0.002, 0.004]}
    slower = {**times, "median": 0.005}
    ours = {"status": status, "reason": "off", "backend": "fused", "cpu": times, "wall": times}
    return {
        "label": f"{case} {n}",
        "work": f"{n} queries",
        "ours": "regard",
        "contenders": {
            "regard": ours,
            "peer": {"status": "measured", "cpu": slower, "notes": ["a note"]},
            "absent": {"status": "missing", "reason": "the package x is not installed"},
        },
        "promises": [
            {"found": 2.5, "bound": 3, "kept": False, "text": "regard is 2.50x as fast: missed"}
        ],
    }


@pytest.fixture
def cases(monkeypatch):
    """Two cases of two contests, and the list of what was held."""
    found = {name: Case(name, f"Case {name}", (1, 2), (1,)) for name in ("first", "second")}
    done = []

    def hold(case, contest, *, quick, tell):
        if "interrupt" in done and case.name == "second":
            raise KeyboardInterrupt
        done.append(f"{case.name} {contest}")
        return record(case.name, contest)

    monkeypatch.setattr(running, "cases_on", lambda device: found)
    monkeypatch.setattr(
        running, "contests_of", lambda case, quick: case.quick if quick else case.contests
    )
    monkeypatch.setattr(running, "hold", hold)
    return done


def test_without_resume_everything_is_measured_anew(cases, tmp_path):
    run_bench(["first"], out=tmp_path)
    run_bench(["first"], out=tmp_path)
    assert cases == ["first 1", "first 2"] * 2


def test_quick_takes_the_quick_contests_and_named_cases_alone(cases):
    results = run_bench(["second"], quick=True)
    assert cases == ["second 1"]
    assert results.command == "regard bench second --quick"


@pytest.mark.parametrize("name", ["torch", "threads", "processor"])
def test_results_from_elsewhere_are_not_continued(cases, tmp_path, name):
    results = run_bench(["first"], out=tmp_path)
    results.environment[name] = "another"
    results.save(tmp_path)
    with pytest.raises(ArgumentError, match=f"measured with another {name}"):
        run_bench(out=tmp_path, resume=True)


def test_mistakes_are_found_before_anything_is_measured(cases, tmp_path):
    with pytest.raises(ArgumentError, match="no case is called 'third'; there are first, second"):
        run_bench(["first", "third"])
    with pytest.raises(ArgumentError, match="device 'tpu'"):
        run_bench(device="tpu")
    with pytest.raises(ArgumentError, match="needs the folder"):
        run_bench(resume=True)
    with pytest.raises(DataError, match=r"bench\.json does not exist"):
        run_bench(resume=True, out=tmp_path)
    (tmp_path / "bench.json").write_text("[]")
    with pytest.raises(DataError, match="does not contain results"):
        run_bench(resume=True, out=tmp_path)
    with pytest.raises(OccupiedError, match="is a file"):
        run_bench(out=tmp_path / "bench.json")
    assert not cases


def test_a_device_that_is_not_here_is_refused(cases, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="finds no CUDA device"):
        run_bench(device="cuda")
