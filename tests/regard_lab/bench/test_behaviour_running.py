"""Training, keeping, judging and reporting in `benchmarks/behaviour`."""

import itertools
import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import torch

from benchmarks.behaviour import __main__ as running
from benchmarks.behaviour.learning import SmallDecoder, UpdatePlan, duplication, score, train
from benchmarks.behaviour.study import (
    BehaviourResults,
    ClaimVerdict,
    Experiment,
    Record,
    Records,
    apart,
    at_least,
    below,
    over_seeds,
    write_report,
)


class Recorder:
    """An experiment's `run` that trains nothing, and is interrupted when it is asked for the n-th time."""

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.asked: list[tuple[str, int]] = []
        self.interrupted_at = interrupted_at

    def __call__(self, contender: str, seed: int, quick: bool) -> Record:
        self.asked.append((contender, seed))
        if len(self.asked) == self.interrupted_at:
            raise KeyboardInterrupt
        return {"accuracy": 0.5 + seed / 10, "cpu_seconds": 2.0}


def experiment(name: str, run: Callable[[str, int, bool], Record]) -> Experiment:
    def judge(records: Records) -> list[ClaimVerdict]:
        return [at_least("accuracy of one", over_seeds(records, "one", "accuracy"), 0.6)]

    columns = {"accuracy": "accuracy"}
    return Experiment(name, f"The {name} title", "A recipe.", ("one", "two"), columns, run, judge)


def use(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    monkeypatch.setattr(running, "EXPERIMENTS", experiments)


def test_every_contender_is_trained_with_every_seed_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recorder = Recorder()
    use(monkeypatch, experiment("first", recorder))
    running.main(["--out", str(tmp_path)])
    assert sorted(recorder.asked) == list(itertools.product(("one", "two"), (0, 1, 2)))
    page = (tmp_path / "behaviour.md").read_text()
    assert "| one | 0.600 (0.500 to 0.700) | 3 | 2 |" in page
    assert f"\nMeasured on {date.today().isoformat()}: regard " in page
    assert BehaviourResults.load(tmp_path, quick=False).measured == date.today().isoformat()
    assert "0 claims kept, 1 missed." in page
    assert "- accuracy of one is 0.500 to 0.700, at least 0.6 promised: missed" in page


def test_an_interrupted_run_keeps_what_was_finished_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use(monkeypatch, experiment("first", Recorder(interrupted_at=4)))
    with pytest.raises(SystemExit, match="--resume"):
        running.main(["--out", str(tmp_path)])
    assert "3 trainings are missing" in (tmp_path / "behaviour.md").read_text()
    recorder = Recorder()
    use(monkeypatch, experiment("first", recorder))
    running.main(["--out", str(tmp_path), "--resume"])
    assert recorder.asked == [("two", 1), ("one", 2), ("two", 2)]
    assert "missing" not in (tmp_path / "behaviour.md").read_text()


def test_a_claim_is_kept_only_if_every_seed_keeps_it():
    assert at_least("x", [0.9, 0.8], 0.8).kept
    assert not at_least("x", [0.9, 0.79], 0.8).kept
    assert below("x", [0.1, 0.29], 0.3).kept
    assert not below("x", [0.1, 0.3], 0.3).kept
    assert apart("x", [3.0, 2.0], [2.0, 1.0], margin=0.9).kept
    assert not apart("x", [3.0, 2.0], [2.0, 1.2], margin=0.9).kept  # by pairs, not by means


def test_training_is_a_function_of_weights_and_seed_and_learns():
    draw = duplication(symbols=3, length=2, rows=8)

    def trained(weights: int, seed: int) -> dict[str, float]:
        torch.manual_seed(weights)
        model = SmallDecoder(vocabulary=4, length=5, dim=8, heads=2, pattern="causal")
        train(model, draw, UpdatePlan(60, 1e-2), seed, "a test")
        return score(model, draw)

    scores = trained(0, 0)
    assert scores == trained(0, 0)
    assert scores != trained(1, 0)
    assert scores != trained(0, 1)
    assert scores["loss"] < math.log(3) - 0.3


@pytest.mark.parametrize("index", range(4))
def test_each_experiment_trains_a_contender_and_measures_its_columns(index: int):
    tried = running.EXPERIMENTS[index]
    record = tried.run(tried.contenders[0], 0, True)
    assert {*tried.columns, "cpu_seconds"} <= set(record)
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize("index", range(4))
def test_each_experiment_judges_what_its_columns_hold(index: int, tmp_path: Path):
    tried = running.EXPERIMENTS[index]
    results = BehaviourResults()
    for contender, seed in results.missing(tried):
        measured = dict.fromkeys(tried.columns, 0.5)
        results.add(tried, contender, seed, {**measured, **WRITTEN})
    write_report(results, [tried], tmp_path)
    claims = tried.judge(results.of(tried))
    page = (tmp_path / "behaviour.md").read_text()
    assert claims
    assert all(str(claim) in page for claim in claims)


WRITTEN: Record = {"cpu_seconds": 1.0, "loss": 0.5, "accuracy": 0.5}
