"""What a run was made of, so that it is never continued as something else."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import torch

from regard.errors import ArgumentError
from regard_lab.training.config import TrainingConfig

# How long to train, what is kept and where it is computed; everything else decides the weights.
MAY_CHANGE = ("steps", "minutes", "patience", "keep", "skip_non_finite", "parallel")
DIGEST = re.compile("[0-9a-f]{64}")  # means nothing to a reader


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

    Raises:
        ArgumentError: the task's or the model's description has no JSON form.

    >>> found = fingerprint(torch.nn.Linear(2, 1), "toy", {}, {}, {"rows": 8}, TrainingConfig(), processes=1)
    >>> found["model"]["tensors"]["weight"]
    'float32 (1, 2)'
    """
    tensors = {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
        for name, tensor in model.state_dict().items()
    }
    free = MAY_CHANGE[1:] if config.ends_at_steps else MAY_CHANGE
    training = {name: value for name, value in config.to_dict().items() if name not in free}
    found = {
        "training": training,
        "model": {"kind": kind, "config": model_config, "tensors": tensors},
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in extra_files.items()},
        "data": data,
        "processes": processes,
    }
    try:
        return json.loads(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"model_config and Task.fingerprint() must be JSON values: {error}") from error


def completed(before: dict[str, Any], now: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """The fingerprint of an earlier session, with what this version of regard adds to fingerprints.

    Settings of the model and of the training that the earlier version did not have take their defaults. A file that
    it did not write, such as the list of training words, follows from the data, whose hash is compared.

    >>> completed({"files": {}}, {"files": {"words.json": "0f"}}, torch.nn.Linear(1, 1))
    {'files': {'words.json': '0f'}}
    """
    full = {**before, "files": {**now.get("files", {}), **before.get("files", {})}}
    if isinstance(before.get("training"), dict):
        full["training"] = {**_defaults(now.get("training", {})), **before["training"]}
    config = getattr(model, "config", None)
    if is_dataclass(config) and isinstance(before.get("model"), dict):
        asked = now.get("model", {}).get("config", {})
        added = {field.name: field.default for field in fields(config) if field.name in asked}
        known = {name: value for name, value in added.items() if value is not MISSING}
        described = json.loads(json.dumps({**known, **before["model"].get("config", {})}, default=str))
        full["model"] = {**before["model"], "config": described}
    return full


def _defaults(training: dict[str, Any]) -> dict[str, Any]:
    """The defaults of these settings of a training, as JSON values; required ones have none."""
    defaults = {field.name: field.default for field in fields(TrainingConfig) if field.default is not MISSING}
    return json.loads(json.dumps({name: defaults[name] for name in training if name in defaults}))


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


def environment(device: torch.device, parallel: str = TrainingConfig.parallel) -> dict[str, Any]:
    """What changes the last bits of a sum, but not what is trained.

    >>> environment(torch.device("cpu"))["device"]
    'cpu'
    """
    threads = torch.get_num_threads()
    return {"torch": str(torch.__version__), "threads": threads, "device": device.type, "parallel": parallel}


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """One phrase for each value in which two fingerprints differ.

    >>> differences({"training": {"seed": 0}}, {"training": {"seed": 1}})
    ['training.seed was 0, now 1']
    """
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            phrase
            for key in dict.fromkeys([*before, *now])
            for phrase in differences(before.get(key, "absent"), now.get(key, "absent"), f"{name}.{key}".lstrip("."))
        ]
    if all(isinstance(value, str) and DIGEST.fullmatch(value) for value in (before, now)):
        return [f"{name} was another"]
    return [f"{name} was {_short(before)}, now {_short(now)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
