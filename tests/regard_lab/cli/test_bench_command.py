"""`regard bench` as people run it; the contests themselves are small here."""

import json

import pytest
from test_commands import regard

from regard_lab.bench import running
from regard_lab.bench.work import Case


def record(case, contest, status="measured"):
    times = {"median": 0.002, "low": 0.001, "high": 0.004, "samples": [0.001, 0.002, 0.004]}
    ours = {"status": status, "reason": "off", "cpu": times, "wall": times}
    return {
        "label": f"{case} {contest}", "work": f"{contest} queries", "family": case, "length": contest, "ours": "regard",
        "contenders": {"regard": ours}, "promises": [],
    }  # fmt: skip


@pytest.fixture(autouse=True)
def held(request, monkeypatch):
    """Two small cases, and the list of the contests held; none for a real case."""
    done = []
    if "real" in request.node.name:
        return done

    def hold(case, contest, *, quick, tell):
        if "interrupt" in done and case.name == "second":
            raise KeyboardInterrupt
        done.append(f"{case.name} {contest}")
        return record(case.name, contest)

    monkeypatch.setattr(
        running,
        "cases_on",
        lambda device: {name: Case(name, f"Case {name}", (1, 2), (1,)) for name in ("first", "second")},
    )
    monkeypatch.setattr(running, "contests_of", lambda case, quick: case.quick if quick else case.contests)
    monkeypatch.setattr(running, "hold", hold)
    return done


def test_bench_reports_and_writes(tmp_path):
    answer = regard("bench", "first", "--quick", "--out", tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "Case first" in answer.stdout.decode()
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}
    written = json.loads((tmp_path / "bench.json").read_text())
    shown = json.loads(regard("bench", "first", "--quick", "--json", "--out", tmp_path).stdout)
    assert shown | {"sha256": written["sha256"]} == written


def test_an_interruption_says_how_to_go_on(held, tmp_path):
    held.append("interrupt")
    answer = regard("bench", "--out", tmp_path)
    assert answer.returncode == 130
    assert "--resume goes on" in answer.stderr.decode()
    held.clear()
    answer = regard("bench", "--out", tmp_path, "--resume")
    assert answer.returncode == 0, answer.stderr
    assert held == ["second 1", "second 2"]
    assert (tmp_path / "bench-first.png").exists()


def test_our_own_mistake_fails_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "hold", lambda case, contest, quick, tell: record(case.name, contest, "wrong"))
    answer = regard("bench", "first", "--out", tmp_path)
    assert answer.returncode == 1
    assert "regard was wrong or failed: first 1: regard wrong: off" in answer.stderr.decode()


def test_an_unknown_case_is_one_line(tmp_path):
    answer = regard("bench", "nothing", "--out", tmp_path)
    assert answer.returncode == 2
    assert "no case is called 'nothing'; there are first, second" in answer.stderr.decode()
    assert answer.stderr.count(b"\n") == 1


def test_one_real_case_from_start_to_end(tmp_path):
    answer = regard("bench", "overhead", "--quick", "--out", tmp_path, "--json")
    assert answer.returncode == 0, answer.stderr
    contest = json.loads(answer.stdout)["cases"]["overhead"]["contests"][0]
    assert {one["status"] for one in contest["contenders"].values()} == {"measured"}
    assert all(one["cpu"]["median"] > 0 for one in contest["contenders"].values())
