"""What a run was made of, so that it is never continued as something else; README.txt and run.json state it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.bench import results as bench
from regard_lab.training.config import TrainingConfig
from regard_lab.training.engine import Workers

# How long to train, what is kept and where it is computed; everything else decides the weights.
MAY_CHANGE = ("steps", "minutes", "patience", "keep")
# A value that means nothing to a reader.
DIGEST = re.compile("[0-9a-f]{64}")
RUN_FILE = "run.json"
README_FILE = "README.txt"
README_HEAD = "A training run of regard. What is in this folder:\n\n"
FILES = {
    "step-*/": "a checkpoint after so many steps: config.json and weights.safetensors are the model, training.json "
    "and optimiser.safetensors the state from which training continues with identical results, bit for bit",
    "checkpoints.json": "which checkpoint is the last, and which the best by its validation loss",
    RUN_FILE: "marks this folder as a run: the model, the settings of the training, a fingerprint of its data, "
    "and where each session ran",
    "log.jsonl": "the curves: one line for every few steps and for each validation, losses in nats per target",
    "lock": "held by a training that is running; it may stay",
}


@dataclass(frozen=True)
class Identity:
    """What a checkpoint states about the model and the run beside the numbers."""

    kind: str
    model_config: dict[str, Any]
    extra_files: dict[str, str]
    config: TrainingConfig
    fingerprint: dict[str, Any]
    environment: dict[str, Any]


def fingerprint(
    model: torch.nn.Module,
    kind: str,
    model_config: dict[str, Any],
    extra_files: dict[str, str],
    data: dict[str, Any],
    config: TrainingConfig,
    processes: int,
) -> dict[str, Any]:
    """Everything that must be equal before and after a resume, as JSON values.

    >>> found = fingerprint(torch.nn.Linear(2, 1), "toy", {}, {}, {"rows": 8}, TrainingConfig(), processes=1)
    >>> found["model"]["tensors"]["weight"]
    'float32 (1, 2)'
    """
    tensors = {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
        for name, tensor in model.state_dict().items()
    }
    # Each rate of a cosine depends on the steps, the first of the settings that may change.
    free = MAY_CHANGE[1:] if config.schedule == "cosine" else MAY_CHANGE
    settings = {name: value for name, value in config.to_dict().items() if name not in free}
    digests = {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in extra_files.items()
    }
    content = {
        "training": settings,
        "model": {"kind": kind, "config": model_config, "tensors": tensors},
        "files": digests,
        "data": data,
        "processes": processes,
    }
    try:
        return json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"model_config and Task.fingerprint() must be JSON values: {error}"
        ) from error


def hash_of(*parts: Sequence[Any]) -> str:
    """A hash of lists of texts as ids, and of where one list ends.

    >>> hash_of([[5, 6]], [[7]]) == hash_of([[5, 6], [7]], [])
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        for text in part:
            digest.update(repr(text).encode())
        digest.update(b"/")
    return digest.hexdigest()


def environment(device: torch.device) -> dict[str, Any]:
    """What changes the last bits of a sum, but not what is trained.

    >>> environment(torch.device("cpu"))["device"]
    'cpu'
    """
    threads = torch.get_num_threads()
    return {"torch": str(torch.__version__), "threads": threads, "device": device.type}


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """One phrase for each value in which two fingerprints differ.

    >>> differences({"training": {"seed": 0}}, {"training": {"seed": 1}})
    ['training.seed was 0, now 1']
    """
    if before == now:
        return []

    if isinstance(before, dict) and isinstance(now, dict):
        phrases: list[str] = []
        for key in dict.fromkeys([*before, *now]):
            path = f"{name}.{key}".lstrip(".")
            phrases += differences(before.get(key, "absent"), now.get(key, "absent"), path)
        return phrases

    if all(isinstance(value, str) and DIGEST.fullmatch(value) for value in (before, now)):
        return [f"{name} was another"]
    return [f"{name} was {_shortened(before)}, now {_shortened(now)}"]


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def explain_files(folder: Path, files: Mapping[str, str] = FILES) -> None:
    """Write README.txt: a line or two for each file of the run; one that regard did not write stays."""
    path = folder / README_FILE
    lines = "".join(f"{name}\n    {what}\n" for name, what in files.items())
    text = f"{README_HEAD}{lines}".encode()
    before = path.read_bytes() if path.exists() else None
    if before is None or (before.startswith(README_HEAD.encode()) and before != text):
        replace_file(path, text, durable=False)


def describe_session(folder: Path, identity: Identity, step: int, workers: Workers) -> list[str]:
    """Write run.json: the run as it is now, and one more session, which goes on after `step`; return a sentence if the
    sessions of an earlier file are lost."""
    earlier_sessions, notes = read_sessions(folder / RUN_FILE)
    session = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "after_step": step,
        **bench.environment(workers.device.type),
        "processes": workers.count,
    }
    content = {
        "kind": identity.kind,
        "model": identity.model_config,
        "training": identity.config.to_dict(),
        "data": identity.fingerprint["data"],
        "sessions": [*earlier_sessions, session],
    }
    replace_file(folder / RUN_FILE, render_sealed(content), durable=False)
    return notes


def read_sessions(path: Path) -> tuple[list[Any], list[str]]:
    """The sessions of an earlier run.json, and why they are lost if it is damaged."""
    if not os.path.lexists(path):
        return [], []
    try:
        sessions = read_sealed(path).get("sessions")
    except CheckpointError as error:
        return [], [f"the sessions before this one are lost: {error}"]
    if not isinstance(sessions, list):
        return [], [f"{path} has no sessions before this one"]
    return sessions, []
