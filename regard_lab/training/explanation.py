"""A run that explains itself: what each file is, what is trained on what, and where each session ran."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from regard.errors import CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed_or_older, render_sealed
from regard_lab.training.checkpoint import Identity
from regard_lab.training.workers import Workers

RUN_FILE = "run.json"
README_FILE = "README.txt"
KEYS = ("kind", "model", "training", "data", "sessions")  # of run.json
PACKAGES = ("regard", "torch", "accelerate", "tokenizers", "numpy")
FILES = {
    "step-000100/": "a checkpoint after 100 steps: config.json and weights.safetensors are the model, training.json "
    "and optimiser.safetensors the state from which training continues with identical results, bit for bit",
    "checkpoints.json": "which checkpoint is the last, and which the best by its validation loss",
    RUN_FILE: "marks this folder as a run: the model, the settings of the training, a fingerprint of its data, "
    "and where each session ran",
    "log.jsonl": "the curves: one line for every few steps and for each validation, losses in nats per target",
    "tensorboard/": "the same numbers for TensorBoard, where that was asked for",
    "lock": "held by a training that is running; it may stay",
}


def explain_files(folder: Path, files: Mapping[str, str] = FILES) -> None:
    """Write README.txt, unless there is one: a line or two for each file of the run.

    Raises:
        CheckpointError: the folder cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     explain_files(Path(folder), {"log.jsonl": "the curves"})
    ...     print((Path(folder) / "README.txt").read_text())
    A training run of regard. What is in this folder:
    <BLANKLINE>
    log.jsonl
        the curves
    <BLANKLINE>
    """
    if not (folder / README_FILE).exists():
        said = "".join(f"{name}\n    {what}\n" for name, what in files.items())
        text = f"A training run of regard. What is in this folder:\n\n{said}"
        replace_file(folder / README_FILE, text.encode(), durable=False)


def describe_session(folder: Path, identity: Identity, step: int, workers: Workers) -> list[str]:
    """Write run.json: the run as it is now, and one more session, which goes on after `step`.

    Returns:
        What to say about the file that was there: nothing, or that its sessions are lost.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    before, notes = _sessions(folder / RUN_FILE)
    session = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "after_step": step,
        **machine(workers.device),
        "processes": workers.count,
        "parallel": identity.config.parallel,
    }
    content = {
        "kind": identity.kind,
        "model": identity.model_config,
        "training": identity.config.to_dict(),
        "data": identity.fingerprint["data"],
        "sessions": [*before, session],
    }
    replace_file(folder / RUN_FILE, render_sealed(content), durable=False)
    return notes


def machine(device: torch.device) -> dict[str, Any]:
    """Versions, processor and device; nothing that names a person or a host.

    >>> machine(torch.device("cpu"))["device"]
    'cpu'
    """
    return {
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _sessions(path: Path) -> tuple[list[Any], list[str]]:
    """The sessions of an earlier run.json, and why they are lost if it is damaged."""
    if not os.path.lexists(path):
        return [], []
    try:
        found, _ = read_sealed_or_older(path, KEYS, KEYS)
    except CheckpointError as error:
        return [], [f"the sessions before this one are lost: {error}"]
    sessions = found["sessions"]
    return (sessions, []) if isinstance(sessions, list) else ([], [f"{path} tells no sessions before this one"])


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
