"""What a run on the disk is and how far it came, without loading its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, CheckpointError
from regard.kinds import a_path
from regard.models.storage import read_checkpoints
from regard.training.checkpoint import RunState, read_training
from regard.training.config import TrainingConfig


@dataclass(frozen=True)
class RunSummary:
    """A run as its last checkpoint tells it: its settings, its data's fingerprint, and its best model so far."""

    config: TrainingConfig
    data: dict[str, Any]
    step: int
    tokens: int
    best_step: int | None
    best_loss: float | None


def read_run(folder: str | Path) -> RunSummary:
    """Read how far a run came and with which settings, for instance to resume it with the same.

    Args:
        folder: what `train` was given.

    Raises:
        CheckpointError: there is no run, or it is damaged.

    >>> read_run("nowhere")
    Traceback (most recent call last):
    regard.errors.CheckpointError: nowhere holds no run of training
    """
    folder = a_path("folder", folder)
    checkpoints = read_checkpoints(folder)
    if checkpoints is None:
        raise CheckpointError(f"{folder} holds no run of training")
    content = read_training(folder / checkpoints.last)
    try:
        config = TrainingConfig.from_dict(content["config"])
    except ArgumentError as error:
        raise CheckpointError(f"{folder / checkpoints.last} was trained with other settings: {error}") from error
    state = RunState(**content["state"])
    data = content["fingerprint"].get("data", {})
    return RunSummary(config, data, state.step, state.tokens, state.best_step, state.best_loss)
