"""Two processes, each with its share of the batch, are one process with the whole of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_training import CONFIG, ToyTask, log_without_times, make_model

from regard.models.storage import load_model, read_checkpoints
from regard.training import train
from regard.training.workers import Workers


def test_one_process_sums_and_decides_for_itself():
    workers = Workers(cpu=True)
    assert (workers.rank, workers.count, workers.is_main) == (0, 1, True)
    assert workers.sum(1.5, 2) == [1.5, 2.0]
    assert workers.any(True, False) == [True, False]


def torchrun(folder: Path, steps: int) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(Path(__file__).with_name("train_two.py")), str(folder), str(steps)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_processes_train_to_the_weights_of_one_also_over_a_resume(tmp_path):
    """The shares hold unequal numbers of tokens; float64, so that only the rule can differ."""
    model = make_model(torch.float64, dropout=0.0)
    one = train(model, ToyTask(), CONFIG, tmp_path / "one", kind="toy", cpu=True)
    torchrun(tmp_path / "two", steps=6)
    told = torchrun(tmp_path / "two", steps=12)
    assert told.count(f"{one.tokens} tokens") == 2
    found = load_model(tmp_path / "two" / read_checkpoints(tmp_path / "two").last, kind="toy").state
    for name, tensor in model.state_dict().items():
        assert (found[name] - tensor).abs().max() <= 1e-10
    losses = [
        [line["loss"] for line in log_without_times(tmp_path / run) if line["step"] % 4 == 0] for run in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
