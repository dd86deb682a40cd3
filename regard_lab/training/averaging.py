"""The mean of a run's last checkpoints, which is often a little better than each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.arguments import a_path, absent, count_of
from regard.errors import ArgumentError, CheckpointError, NotFoundError
from regard_lab.models.storage import SavedModel, load_model, read_checkpoints, save_model
from regard_lab.training.checkpoint import complete_checkpoints

UNTRAINED = "step-000000"  # what every run begins with


def average_checkpoints(run: str | Path, count: int, out: str | Path) -> list[str]:
    """Save the mean of the last checkpoints of a run as a model of its own.

        weight = (weight_1 + ... + weight_count) / count

    Sums are taken in float64 and rounded once; tensors of whole numbers are those of the last checkpoint.

    Args:
        run: a folder that `train` wrote with `keep` of at least `count`.
        count: how many of its last checkpoints.
        out: the folder of the new model, with the run's extra files beside it.

    Returns:
        The names of the checkpoints that were taken, the last one last.

    Raises:
        ArgumentError: fewer than one checkpoint was asked for.
        NotFoundError: the folder holds no run.
        CheckpointError: there are too few, one is damaged or of another config, or `out` holds something else.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 6.1.

    >>> average_checkpoints("nowhere", 5, "mean")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    run = a_path("run", run)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"the mean of {count!r} checkpoints was asked for; it needs a whole number of at least 1")
    checkpoints = read_checkpoints(run)
    if checkpoints is None:
        raise NotFoundError(f"{run} holds no run of training" if run.exists() else absent(run))
    names = [name for name in complete_checkpoints(run, checkpoints) if name != UNTRAINED]
    if len(names) < count:
        kept = ", ".join(names) or "beside the untrained"
        raise NotFoundError(
            f"the last {count_of(count, 'checkpoints')} of {run} were asked for, and it keeps {len(names)} ({kept}); "
            f"ask for fewer, or go on with the training and keep more: --resume --keep {count} (keep={count} in Python)"
        )
    last, mean = _mean_of([run / name for name in names[-count:]])
    save_model(out, last.config, mean, last.kind, last.extra_files)
    return names[-count:]


def _mean_of(folders: Sequence[Path]) -> tuple[SavedModel, dict[str, torch.Tensor]]:
    """The last of some saved models, and the mean of all: one model in memory at a time, beside it and the sums."""
    last = load_model(folders[-1])
    sums = {name: tensor.double() for name, tensor in _floating(last).items()}
    for folder in folders[:-1]:
        saved = load_model(folder)
        _check_alike(last, saved, folder)
        for name, tensor in _floating(saved).items():
            sums[name] += tensor
    means = {id(last.state[name]): (total / len(folders)).to(last.state[name].dtype) for name, total in sums.items()}
    return last, {name: means.get(id(tensor), tensor) for name, tensor in last.state.items()}  # tied weights stay one


def _floating(saved: SavedModel) -> dict[str, torch.Tensor]:
    """The tensors that have a mean, those that are one under the first of their names."""
    names = {id(tensor): name for name, tensor in reversed(saved.state.items()) if tensor.is_floating_point()}
    return {name: saved.state[name] for name in names.values()}


def _check_alike(first: SavedModel, other: SavedModel, where: Path) -> None:
    shapes, others = ({name: (t.shape, t.dtype) for name, t in saved.state.items()} for saved in (first, other))
    if (first.kind, first.config, shapes) != (other.kind, other.config, others):
        raise CheckpointError(f"{where} holds a model of another config than the last checkpoint: they have no mean")
