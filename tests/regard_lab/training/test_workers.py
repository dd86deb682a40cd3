"""Two processes, each with its share of the batch, are one process with the whole of it."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from two_readers import CONFIG, Together, train_reader

from regard_lab.models import LanguageModel
from regard_lab.models.storage import load_model, read_checkpoints
from regard_lab.training import read_log
from regard_lab.training.engine import Workers

WHOLE_STEP = dataclasses.replace(CONFIG, accumulate=2 * CONFIG.accumulate)


def test_one_process_sums_and_decides_for_itself():
    workers = Workers(cpu=True)
    assert (workers.rank, workers.count, workers.is_main) == (0, 1, True)
    assert workers.sum(1.5, 2) == [1.5, 2.0]
    assert workers.any(True, False) == [True, False]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes left in a folder."""
    folder = tmp_path_factory.mktemp("two")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = subprocess.run(
        [*launcher, str(Path(__file__).with_name("two_readers.py")), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return folder


def weights(run):
    return load_model(run / read_checkpoints(run).last, LanguageModel.KIND).state


def curves(run):
    return [
        line[name]
        for line in read_log(run / "log.jsonl")
        for name in ("loss", "gradient_norm")
        if name in line
    ]


@pytest.mark.slow
def test_two_processes_train_to_the_weights_of_one_also_over_a_resume(two, tmp_path):
    """In float64, so that only the rule can differ: the shares hold unequal numbers of tokens."""
    one = train_reader(tmp_path / "one", WHOLE_STEP, Together())
    expected = weights(tmp_path / "one")
    found = weights(two / "ddp")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() <= 1e-9, name
    assert curves(two / "ddp") == pytest.approx(curves(tmp_path / "one"), rel=1e-9)
    assert read_log(two / "ddp" / "log.jsonl")[-2]["tokens"] == one.tokens
    assert isinstance(LanguageModel.load(two / "ddp"), LanguageModel)


@pytest.mark.slow
def test_in_float32_they_differ_by_rounding_alone(two, tmp_path):
    """Not in no bit: sums over a batch are added up in another order, and Adam divides by their small roots."""
    train_reader(tmp_path / "one", WHOLE_STEP, Together(), dtype=torch.float32)
    expected = weights(tmp_path / "one")
    found = weights(two / "float32")
    worst = max(float((found[name] - tensor).abs().max()) for name, tensor in expected.items())
    print(f"furthest weight {worst:.1e}")
    assert worst <= 1e-3 * CONFIG.learning_rate * CONFIG.steps  # of what a weight can have moved
    assert curves(two / "float32") == pytest.approx(curves(tmp_path / "one"), rel=1e-5)


@pytest.mark.slow
def test_all_processes_name_the_batch_of_the_one_that_failed(two):
    told = [(two / f"fault-{rank}.txt").read_text() for rank in range(2)]
    assert told[0] == told[1]
    assert "step 2 cannot be done: the loss of batch 3 is not finite" in told[0]
    assert read_checkpoints(two / "poisoned").last == "step-000001"
