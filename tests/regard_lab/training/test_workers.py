"""Two processes, each with its share of the batch, are one process with the whole of it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from two_readers import CONFIG, Together, train_reader

from regard_lab.models import LanguageModel
from regard_lab.models.storage import load_model, read_checkpoints
from regard_lab.training import read_log
from regard_lab.training.engine import Workers

WHOLE_STEP = replace(CONFIG, batches_per_step=2 * CONFIG.batches_per_step)


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
    numbers = []
    for line in read_log(run / "log.jsonl"):
        numbers += [line[name] for name in ("loss", "gradient_norm") if name in line]
    return numbers


@pytest.mark.slow
def test_two_processes_train_to_the_weights_of_one_also_over_a_resume(two, tmp_path):
    """In float64, so that only the rule can differ: the shares hold unequal numbers of tokens."""
    result = train_reader(tmp_path / "one", WHOLE_STEP, Together())
    expected = weights(tmp_path / "one")
    of_two = weights(two / "ddp")
    assert of_two.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (of_two[name] - tensor).abs().max() <= 1e-9, name
    assert curves(two / "ddp") == pytest.approx(curves(tmp_path / "one"), rel=1e-9)
    assert read_log(two / "ddp" / "log.jsonl")[-2]["tokens"] == result.tokens
    assert isinstance(LanguageModel.load(two / "ddp"), LanguageModel)


@pytest.mark.slow
def test_in_float32_they_differ_by_rounding_alone(two, tmp_path):
    """Not in no bit: sums over a batch are added up in another order, and Adam divides by their small roots."""
    train_reader(tmp_path / "one", WHOLE_STEP, Together(), dtype=torch.float32)
    of_two = weights(two / "float32")
    furthest = CONFIG.learning_rate * CONFIG.steps  # that a weight can have moved
    for name, tensor in weights(tmp_path / "one").items():
        assert (of_two[name] - tensor).abs().max() <= 1e-3 * furthest, name
    assert curves(two / "float32") == pytest.approx(curves(tmp_path / "one"), rel=1e-5)


@pytest.mark.slow
def test_all_processes_name_the_batch_of_the_one_that_failed(two):
    fault = (two / "fault-0.txt").read_text()
    assert "step 2 cannot be done: the loss of batch 3 is not finite" in fault
    assert (two / "fault-1.txt").read_text() == fault
    assert read_checkpoints(two / "poisoned").last == "step-000001"
