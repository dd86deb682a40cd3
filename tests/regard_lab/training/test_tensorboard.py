"""TensorBoard gets the numbers of the log, and is no part of training."""

import sys
import types
from typing import ClassVar

import pytest
from toy_training import CrashError, at_step, crash, log_without_times, seals, train_toy

from regard.errors import MissingPackageError
from regard_lab.training import read_log


class Writer:
    """What torch's SummaryWriter does with what it is told, as TensorBoard shows it: later steps are purged."""

    shown: ClassVar[list] = []
    closed = 0

    def __init__(self, folder, purge_step):
        Writer.shown = [point for point in Writer.shown if purge_step is None or point[1] < purge_step]

    def add_scalar(self, tag, value, step):
        Writer.shown.append((tag, step, value))

    def flush(self): ...

    def close(self):
        Writer.closed += 1


@pytest.fixture
def board(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", Writer, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "shown", [])
    monkeypatch.setattr(Writer, "closed", 0)
    return Writer


def in_log(run):
    return [
        (f"{line['kind']}/{name}", line["step"], value)
        for line in read_log(run / "log.jsonl")
        for name, value in line.items()
        if name not in ("step", "kind")
    ]


def test_the_numbers_are_those_of_the_log_also_over_a_crash(tmp_path, board):
    with pytest.raises(CrashError):
        train_toy(tmp_path / "run", tensorboard=True, progress=at_step(11, crash))
    assert board.shown[-1][1] == 10  # one line after the last checkpoint
    train_toy(tmp_path / "run", tensorboard=True, resume=True)
    assert board.shown == in_log(tmp_path / "run")
    assert board.closed == 2
    train_toy(tmp_path / "plain")
    assert seals(tmp_path / "run") == seals(tmp_path / "plain")
    assert log_without_times(tmp_path / "run") == log_without_times(tmp_path / "plain")


def test_without_the_package_nothing_is_begun_and_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingPackageError, match="pip install tensorboard, or leave the option out"):
        train_toy(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
