"""Finished cases are written, an interrupted run goes on, and what was measured elsewhere is not mixed in."""

from dataclasses import replace

import pytest

from regard.errors import ArgumentError, DataError, OccupiedError, UnsupportedError
from regard_lab.bench import results as results_module
from regard_lab.bench import running
from regard_lab.bench.peaks import Peaks
from regard_lab.bench.results import Results
from regard_lab.bench.running import run_bench
from regard_lab.bench.work import Case

PEAKS = Peaks(
    float32=100.0,
    bfloat16=200.0,
    copy=20.0,
    sum=10.0,
    product=90.0,
    float32_by="a loop",
    bfloat16_by="a product",
)


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
    named_cases = {name: Case(name, f"Case {name}", (1, 2), (1,)) for name in ("first", "second")}
    done = []

    def hold(case, contest, *, quick, tell):
        if "interrupt" in done and case.name == "second":
            raise KeyboardInterrupt
        done.append(f"{case.name} {contest}")
        return record(case.name, contest)

    monkeypatch.setattr(running, "cases_on", lambda device: named_cases)
    monkeypatch.setattr(
        running, "contests_of", lambda case, quick: case.quick if quick else case.contests
    )
    monkeypatch.setattr(running, "hold", hold)
    monkeypatch.setattr(running, "measure_peaks", lambda: PEAKS)
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


def test_results_of_another_family_of_processors_are_kept(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(results_module, "family", lambda: "Zen 5")
    run_bench(["first"], out=tmp_path)
    before = (tmp_path / "bench.json").read_bytes()
    monkeypatch.setattr(results_module, "family", lambda: "Zen 4")
    with pytest.raises(OccupiedError, match=r"results of Zen 5 on cpu, and this is Zen 4 on cpu"):
        run_bench(["first"], out=tmp_path)
    assert (tmp_path / "bench.json").read_bytes() == before


def test_the_highest_peaks_of_a_run_are_kept(cases, tmp_path, monkeypatch):
    run_bench(["first"], out=tmp_path)
    slower = replace(PEAKS, float32=70.0, float32_by="slow", sum=11.0)
    monkeypatch.setattr(running, "measure_peaks", lambda: slower)
    results = run_bench(out=tmp_path, resume=True)
    expected = replace(PEAKS, sum=11.0)
    assert results.peaks == expected.to_dict()
    assert Results.load(tmp_path).peaks == expected.to_dict()
    assert f"One core does at most: {expected}" in (tmp_path / "bench.md").read_text()


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
