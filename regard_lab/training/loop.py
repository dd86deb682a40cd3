"""`train`: a model, a task and a folder in; a trained model, its checkpoints and its log out."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from regard.arguments import a_path
from regard.errors import CheckpointError, OccupiedError
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed, read_sealed_or_older
from regard_lab.models.storage import CHECKPOINTS_FILE, read_checkpoints
from regard_lab.training.checkpoint import Identity
from regard_lab.training.config import TrainingConfig
from regard_lab.training.explanation import KEYS, RUN_FILE
from regard_lab.training.fingerprint import environment, fingerprint
from regard_lab.training.record import Progress, Record
from regard_lab.training.run import OnValidation, Run, TrainingResult
from regard_lab.training.session import Interruption, folder_lock
from regard_lab.training.task import Task
from regard_lab.training.workers import Workers

SETTINGS_FILE = "settings.json"  # what the commands keep of their options


def train(
    model: torch.nn.Module,
    task: Task,
    config: TrainingConfig,
    folder: str | Path,
    *,
    kind: str = "model",
    model_config: dict[str, Any] | None = None,
    extra_files: dict[str, str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_begin: Callable[[], None] | None = None,
    on_validation: OnValidation | None = None,
    tensorboard: bool = False,
    cpu: bool = False,
) -> TrainingResult:
    """Train a model and keep its last and its best checkpoint in a folder that survives any kill.

    On the same machine, torch and number of threads, a CPU run that was killed and resumed ends in the same bits
    as one that was not. The first Ctrl-C or SIGTERM finishes the step, saves and returns; the second raises.

    Args:
        model: trained in place; afterwards it holds the last weights, and `load_model(folder)` gives the best.
        task: the batches and the losses.
        config: how long and how fast.
        folder: made if missing; empty, or a run of ours; README.txt in it says what each file is.
        kind: the kind of model, and
        model_config: its settings, and
        extra_files: texts such as `tokeniser.json`: all three go into every checkpoint, see `save_model`.
        resume: go on with the run in the folder, or begin where there is none. `steps` (but for the cosine),
            `minutes`, `patience`, `keep`, `skip_non_finite` and `parallel` may differ from before, nothing
            else.
        progress: a function that is handed each event; the loop itself prints nothing.
        on_begin: a function that is called once the run may be written, on the main process, after run.json, which
            marks the folder as a run, and before any other file.
        on_validation: a function that is handed the model (to ask, not to change), the number of steps and the folder
            after each validation, on the main process; it changes no weight and no random number.
        tensorboard: write the numbers of the log for TensorBoard too, into `tensorboard/`.
        cpu: compute on the CPU even where there is an accelerator.

    Returns:
        Counts, losses, seconds and the reason to stop.

    Raises:
        CheckpointError: the folder holds a run (without `resume`), another run or other files, or is in use; or saving
            failed.
        ArgumentError: patience without validation batches, a description that is not JSON, or weights to be shared
            by one process alone.
        DataError: a batch without a target token.
        RegardError: the loss or gradient of a step is not finite; the run is saved as it was before that step.
        MissingPackageError: accelerate, or with `tensorboard` that package, is not installed.

    >>> import tempfile
    >>> class Halves:
    ...     def batch(self, index): return torch.tensor([[1.0], [2.0]])
    ...     def loss(self, model, batch): return (model(batch) - batch / 2).square().sum(), len(batch)
    ...     def validation_batches(self): return [torch.tensor([[3.0]])]
    ...     validation_loss = loss
    ...     def fingerprint(self): return {"data": "halves"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(torch.nn.Linear(1, 1), Halves(), TrainingConfig(steps=3), folder, cpu=True).stopped
    'steps'
    """
    folder = a_path("folder", folder)
    workers = Workers(cpu, config.parallel)
    record = Record(folder, is_main=workers.is_main, progress=progress, tensorboard=tensorboard)
    check_run_folder(folder)
    _make_folder(folder)
    was_training = model.training
    with folder_lock(folder) if workers.is_main else nullcontext(), Interruption() as interruption:
        identity = Identity(
            kind=kind,
            model_config=model_config or {},
            extra_files=extra_files or {},
            config=config,
            fingerprint=fingerprint(
                model, kind, model_config or {}, extra_files or {}, task.fingerprint(), config, workers.count
            ),
            environment=environment(workers.device, config.parallel),
        )
        run = Run(model, task, config, folder, identity, workers, interruption, record, on_validation)
        try:
            run.begin(resume, on_begin)
            return run.go()
        finally:
            model.train(was_training)
            record.close()


def check_run_folder(folder: str | Path) -> None:
    """Raise a CheckpointError unless a run may be written there: the folder is new, empty, or a run of ours.

    A run is recognised by a sealed file, not by file names. `train` checks this before it writes anything.

    >>> check_run_folder("nowhere")
    """
    folder = a_path("folder", folder)
    if folder.exists() and not folder.is_dir():
        raise OccupiedError(f"{folder} is a file, and a run is a folder; choose another name")
    if (folder / "config.json").exists():
        raise OccupiedError(f"{folder} holds a saved model, which a run would hide; choose another folder")
    marks = {
        RUN_FILE: lambda path: read_sealed_or_older(path, KEYS, KEYS),
        CHECKPOINTS_FILE: lambda path: read_checkpoints(path.parent),
        SETTINGS_FILE: read_sealed,
    }
    check_ours(folder, marks, "run", aside=("lock",))


def check_writable(folder: Path) -> None:
    """Raise a CheckpointError unless the folder can be made and written into; nothing is left there.

    >>> check_writable(Path("nowhere"))
    >>> Path("nowhere").exists()
    False
    """
    made: list[Path] = []
    try:
        for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            one.mkdir()
            made.append(one)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_written(folder, error) from error
    finally:
        for one in reversed(made):
            with suppress(OSError):  # another process writes into it
                one.rmdir()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> CheckpointError:
    """The refusal of a folder for a run, with the outer folder that takes no new folders."""
    if folder.exists():
        return CheckpointError(f"{folder} cannot be written into ({error.strerror}); choose another folder")
    outer = next((one for one in folder.parents if one.exists()), folder.parent)
    return CheckpointError(
        f"{folder} cannot be made, since {outer} takes no new folder ({error.strerror}); choose another folder"
    )
