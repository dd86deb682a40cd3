"""A run on the disk: complete checkpoints in `step-000100/` folders, and one small file that lists which count.

Each folder is a saved model that `load_model` reads, with `training.json` and `optimiser.safetensors` beside it.
A checkpoint is written aside, synced and renamed; then `checkpoints.json` is replaced in one instant; then the
folders that it no longer names are deleted. A kill between any two of these leaves a run that can be resumed."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_path, absent, count_of
from regard.errors import (
    ArgumentError,
    CheckpointError,
    NotFoundError,
    OccupiedError,
)
from regard.reprs import brief
from regard.storage import load_tensors, save_tensors
from regard.storage.files import replace_file, write_folder
from regard.storage.sealed_json import check_format, read_sealed, render_sealed
from regard_lab.models.storage import (
    Checkpoints,
    SavedModel,
    load_model,
    read_checkpoints,
    save_model,
    write_checkpoints,
    write_model_files,
)
from regard_lab.training.config import GONE, TrainingConfig, as_named_now
from regard_lab.training.folders import check_that_folders_lock
from regard_lab.training.identity import Identity

FORMAT = 1
STATE_FILE = "training.json"
OPTIMISER_FILE = "optimiser.safetensors"
# The folders that are ours to count and to delete.
SAVED = re.compile(r"step-\d{6,}(-again)*")
# What a kill leaves of them.
UNFINISHED = re.compile(r"\.step-\d{6,}(-again)*\.(writing-[0-9a-f]{8}|previous)")


@dataclass
class RunState:
    """The few numbers that a run needs beside weights and optimiser to go on exactly where it stopped."""

    step: int = 0
    tokens: int = 0
    train_loss: float | None = None  # of the last complete interval of the log
    interval_loss: float = 0.0  # summed over the tokens since the last line of the log
    interval_tokens: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    validated_step: int | None = None
    without_improvement: int = 0  # validations in a row
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    look_seconds: float = 0.0  # that the last validation took, with its samples and its checkpoint
    last_step: int | None = None  # as planned now, where the config has no steps
    # The step at which patience was used up, where a cooldown follows.
    cooling_from: int | None = None


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, however it ends.

    The file `lock` is never removed, since two trainers could then lock two different files. Only a living process
    that has it open holds the lock, so a killed trainer never blocks the next one.
    """
    check_that_folders_lock()
    import fcntl

    path = folder / "lock"
    with _refused(path, "opened or made", "make room there, or choose another folder"):
        # O_NONBLOCK: a pipe in its place must not make this wait for a process at its other end.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path} is not a plain file, so it locks nothing; remove it")
        try:
            with _refused(path, "locked", "choose another folder"):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise CheckpointError(
                f"{folder} is being trained by process {owner}; wait until it ends, or choose another folder"
            ) from None
        with _refused(path, "written", "make room there, or choose another folder"):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _refused(path: Path, what: str, way_out: str) -> Generator[None]:
    """Turn the system's refusal into a sentence; only a lock that another process holds is left as it is."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be {what}: {error.strerror}; {way_out}") from error


def save_checkpoint(
    run: Path,
    weights: dict[str, torch.Tensor],
    moments: dict[str, torch.Tensor],
    state: RunState,
    identity: Identity,
    *,
    is_best: bool,
) -> Path:
    """Write the checkpoint of `state.step`, make it the last (and the best), and delete the one it replaces."""
    keep = identity.config.keep
    before = read_checkpoints(run)
    _remove_unneeded(run, before, keep)
    name = f"step-{state.step:06d}"
    # The same step is saved again after one more validation: never write over a live checkpoint.
    while (run / name).exists():
        name += "-again"

    def write(folder: Path) -> None:
        write_model_files(
            folder, identity.model_config, weights, identity.kind, identity.extra_files
        )
        seal = save_tensors(folder / OPTIMISER_FILE, moments, durable=False)
        content = {
            "format": FORMAT,
            "state": asdict(state),
            "optimiser": seal,
            "config": identity.config.to_dict(),
            "fingerprint": identity.fingerprint,
            "environment": identity.environment,
        }
        replace_file(folder / STATE_FILE, render_sealed(content), durable=False)

    write_folder(run / name, write)
    best_before = before.best if before else None
    now = Checkpoints(last=name, best=name if is_best else best_before)
    write_checkpoints(run, now)
    _remove_unneeded(run, now, keep)
    return run / name


def read_training(folder: Path) -> dict[str, Any]:
    """`training.json` of one checkpoint: its state, fingerprint and environment."""
    content = read_sealed(folder / STATE_FILE)
    check_format(content, FORMAT, folder / STATE_FILE)
    expected = {
        "state": dict,
        "optimiser": str,
        "config": dict,
        "fingerprint": dict,
        "environment": dict,
    }
    wrong = [name for name, kind in expected.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise CheckpointError(
            f"{folder / STATE_FILE} lacks {', '.join(wrong)}, so it is no checkpoint of a run"
        )

    # Older runs hold entries that are settings or state no longer.
    state = content["state"]
    for name in ("skipped", "skipped_in_a_row"):
        state.pop(name, None)
    for name in GONE:
        content["config"].pop(name, None)

    names = {field.name for field in fields(RunState)}
    numbers = [value for value in state.values() if value is not None]
    if state.keys() != names or any(type(number) not in (int, float) for number in numbers):
        raise CheckpointError(
            f"{folder / STATE_FILE} has other entries in its state than {', '.join(sorted(names))}"
        )

    fingerprint = content["fingerprint"]
    model = fingerprint.get("model")
    model_config = model.get("config") if isinstance(model, dict) else None
    parts = (fingerprint.get("files"), model, model_config)
    if any(part is not None and not isinstance(part, dict) for part in parts):
        raise CheckpointError(
            f"{folder / STATE_FILE} holds a fingerprint whose parts are not entries by name"
        )
    return content


def restore_checkpoint(
    folder: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, kind: str
) -> RunState:
    """Put the weights and the optimiser back as they were, and return the numbers beside them."""
    content = read_training(folder)
    saved = load_model(folder, kind=kind)
    flat = load_tensors(folder / OPTIMISER_FILE, seal=content["optimiser"])
    try:
        model.load_state_dict(saved.state)

        places = {name: index for index, name in enumerate(_names(model, optimiser))}
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for path, tensor in flat.items():
            key, _, name = path.partition("/")
            moments.setdefault(places[name], {})[key] = tensor
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": moments, "param_groups": groups})
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{folder} does not fit this model: {error}") from error
    return RunState(**content["state"])


def _names(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """The parameters' names in the optimiser's order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ordered: list[str] = []
    for group in optimiser.param_groups:
        ordered.extend(names[id(parameter)] for parameter in group["params"])
    return ordered


def moments_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's tensors by their kind and the parameter's name."""
    names = _names(model, optimiser)
    moments: dict[str, torch.Tensor] = {}
    for index, of_parameter in optimiser.state_dict()["state"].items():
        for key, tensor in of_parameter.items():
            moments[f"{key}/{names[index]}"] = tensor
    return moments


def complete_checkpoints(run: Path, checkpoints: Checkpoints) -> list[str]:
    """The folders of a run's checkpoints up to the last, in the order of their steps; of one step the latest."""
    end = _place(checkpoints.last)
    latest: dict[int, str] = {}
    names = [folder.name for folder in run.glob("step-*")]
    for name in sorted(names, key=_place):
        if not SAVED.fullmatch(name) or _place(name) > end:
            continue
        folder = run / name
        if folder.is_dir() and not folder.is_symlink():
            step = _place(name)[0]
            latest[step] = name
    return list(latest.values())


def _place(name: str) -> tuple[int, int]:
    """The step in a folder's name, and how often it was saved again."""
    digits = name.removeprefix("step-").partition("-")[0]
    step = int(digits) if digits.isdecimal() else -1
    return step, name.count("-again")


def _remove_unneeded(run: Path, checkpoints: Checkpoints | None, keep: int) -> None:
    """Delete old checkpoints, and what a kill left of unfinished ones."""
    needed: set[str | None] = set()
    if checkpoints is not None:
        latest = complete_checkpoints(run, checkpoints)[-keep:]
        needed = {checkpoints.last, checkpoints.best, *latest}
    ours = [
        folder
        for folder in run.iterdir()
        if SAVED.fullmatch(folder.name) or UNFINISHED.fullmatch(folder.name)
    ]
    for folder in ours:
        if folder.name not in needed and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


@brief
@dataclass(frozen=True)
class RunSummary:
    """A training run, read from its last checkpoint: its settings, its data's fingerprint and its best model so far."""

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
        NotFoundError: there is no run.
        CheckpointError: it is damaged.

    >>> read_run("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    folder = a_path("folder", folder)
    checkpoints = _checkpoints_of(folder)
    content = read_training(folder / checkpoints.last)
    try:
        config = TrainingConfig.from_dict(as_named_now(content["config"]))
    except ArgumentError as error:
        raise OccupiedError(
            f"{folder / checkpoints.last} was trained with other settings: {error}"
        ) from error
    state = RunState(**content["state"])
    data = content["fingerprint"].get("data", {})
    return RunSummary(config, data, state.step, state.tokens, state.best_step, state.best_loss)


def _checkpoints_of(run: Path) -> Checkpoints:
    checkpoints = read_checkpoints(run)
    if checkpoints is not None:
        return checkpoints
    if not run.exists():
        raise NotFoundError(absent(run))
    raise NotFoundError(f"{run} holds no run of training")


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
        ArgumentError: fewer than one checkpoint is wanted.
        NotFoundError: the folder holds no run.
        CheckpointError: there are too few, one is damaged or of another config, or `out` holds something else.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 6.1.

    >>> average_checkpoints("nowhere", 5, "mean")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    run = a_path("run", run)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(
            f"the mean of {count!r} checkpoints was asked for; it needs a whole number of at least 1"
        )
    checkpoints = _checkpoints_of(run)
    names = [name for name in complete_checkpoints(run, checkpoints) if name != UNTRAINED]
    if len(names) < count:
        kept = ", ".join(names) or "beside the untrained"
        raise NotFoundError(
            f"the last {count_of(count, 'checkpoints')} of {run} were asked for, and it keeps {len(names)} ({kept}); "
            f"ask for fewer, or go on with the training and keep more: --resume --keep {count} (keep={count} in Python)"
        )

    taken = names[-count:]
    last, mean = _mean_of([run / name for name in taken])
    save_model(out, last.config, mean, last.kind, last.extra_files)
    return taken


def _mean_of(folders: Sequence[Path]) -> tuple[SavedModel, dict[str, torch.Tensor]]:
    """The last of some saved models, and the mean of all: one model in memory at a time, beside it and the sums."""
    last = load_model(folders[-1])
    expected = (last.kind, last.config, _shapes(last))
    sums = {name: tensor.double() for name, tensor in _floating(last).items()}
    for folder in folders[:-1]:
        saved = load_model(folder)
        if (saved.kind, saved.config, _shapes(saved)) != expected:
            raise CheckpointError(
                f"{folder} holds a model of another config than the last checkpoint: they have no mean"
            )
        for name, tensor in _floating(saved).items():
            sums[name] += tensor

    # Tied weights are one tensor, and have one mean.
    means: dict[int, torch.Tensor] = {}
    for name, total in sums.items():
        tensor = last.state[name]
        means[id(tensor)] = (total / len(folders)).to(tensor.dtype)
    mean = {name: means.get(id(tensor), tensor) for name, tensor in last.state.items()}
    return last, mean


def _shapes(saved: SavedModel) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in saved.state.items()}


def _floating(saved: SavedModel) -> dict[str, torch.Tensor]:
    """The tensors that have a mean, those that are one under the first of their names."""
    names = {
        id(tensor): name
        for name, tensor in reversed(saved.state.items())
        if tensor.is_floating_point()
    }
    return {name: saved.state[name] for name in names.values()}
