"""Saved models: a folder with `config.json`, `weights.safetensors` and a few text files.

A training run holds several such folders, such as `step-000100/`, and `checkpoints.json` names the last and the best;
`load_model` reads a training run as its best model. Nothing is unpickled.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_path, a_string, absent, count_of, of_kind
from regard.errors import ArgumentError, CheckpointError, NotFoundError, OccupiedError
from regard.reprs import brief
from regard.storage.files import (
    TEXT_LIMIT,
    check_name,
    existing_folder,
    naming,
    read_bytes,
    replace_file,
    write_folder,
)
from regard.storage.sealed_json import check_format, parse_json, read_sealed, render_sealed
from regard.storage.tensors import load_tensors, save_tensors

__all__ = [
    "SavedModel",
    "save_model",
    "load_model",
    "Checkpoints",
    "read_checkpoints",
    "write_checkpoints",
    "write_model_files",
]

FORMAT = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.safetensors"
CHECKPOINTS_FILE = "checkpoints.json"
COMMANDS = {  # that read a model of each kind
    "translation-transformer": "regard translate",
    "recurrent-translator": "regard translate",
    "language-model": "regard generate",
    "text-encoder": "regard view, and regard classify if it has labels",
}


@brief
@dataclass(frozen=True)
class SavedModel:
    """A model as `load_model` reads it: its config, tensors, kind and text files."""

    config: dict[str, Any]
    state: dict[str, torch.Tensor]
    kind: str
    extra_files: dict[str, str]


@dataclass(frozen=True)
class Checkpoints:
    """The folders of the last and the best model in a training run; best is None before the first validation."""

    last: str
    best: str | None = None


def save_model(
    folder: str | Path,
    config: dict[str, Any],
    state: dict[str, torch.Tensor],
    kind: str,
    extra_files: dict[str, str] | None = None,
) -> None:
    """Write a model into a folder atomically.

    Args:
        folder: the folder; a saved model there is replaced, other content is refused.
        config: settings that build the module again, as JSON values.
        state: its state dict; tied tensors are stored once.
        kind: name of the kind of model.
        extra_files: texts to save with it by file name, such as `tokeniser.json`.

    Raises:
        ArgumentError: a value that cannot be stored.
        CheckpointError: the folder holds other files, or could not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     save_model(f"{parent}/m", {"dim": 2}, {"weight": torch.ones(2)}, kind="toy")
    ...     load_model(f"{parent}/m", kind="toy").config
    {'dim': 2}
    """
    folder = a_path("folder", folder)
    of_kind("config", config, dict, "settings by name")
    of_kind("state", state, dict, "tensors by name")
    a_string("kind", kind)
    extra_files = of_kind(
        "extra_files", {} if extra_files is None else extra_files, dict, "texts by file name"
    )
    for name, text in extra_files.items():
        a_string(f"extra file {name!r}", text)
    _check_replaceable(existing_folder(folder))
    write_folder(
        folder,
        lambda aside: write_model_files(aside, config, state, kind, extra_files),
        replace=True,
    )


def write_model_files(
    folder: Path,
    config: dict[str, Any],
    state: dict[str, torch.Tensor],
    kind: str,
    extra_files: dict[str, str] | None = None,
) -> None:
    """Write the files of `save_model` into a folder that `write_folder` is writing."""
    files = {WEIGHTS_FILE: save_tensors(folder / WEIGHTS_FILE, state, durable=False)}
    for name, text in (extra_files or {}).items():
        data = text.encode()
        if check_name(name, "extra_files") in (CONFIG_FILE, WEIGHTS_FILE) or len(data) > TEXT_LIMIT:
            raise ArgumentError(
                f"extra file {name!r} of {len(data)} bytes: {CONFIG_FILE} and {WEIGHTS_FILE} are reserved, and a "
                f"text has at most {TEXT_LIMIT} bytes"
            )
        files[name] = hashlib.sha256(data).hexdigest()
        replace_file(folder / name, data, durable=False)
    content = {"format": FORMAT, "kind": kind, "config": config, "files": files}
    replace_file(folder / CONFIG_FILE, render_sealed(content), durable=False)


def load_model(folder: str | Path, kind: str | None = None) -> SavedModel:
    """Read a saved model, or the best model of a training run, and verify its checksums.

    Args:
        folder: a folder written by `save_model` or `regard_lab.training.train`.
        kind: the kind to accept; None accepts any.

    Returns:
        The config, the tensors on the CPU, the kind and the extra files.

    Raises:
        NotFoundError: the folder is missing, or holds no model.
        CheckpointError: it is damaged, of another kind, or written by a newer version.

    >>> load_model("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    folder = a_path("folder", folder)
    while True:
        chosen = _model_folder(folder)
        try:
            with naming(folder, existing_folder(folder)):
                return _load(chosen, kind)
        except CheckpointError:
            # Otherwise a training wrote a newer checkpoint meanwhile: read that.
            if _model_folder(folder) == chosen:
                raise


def kind_of_model(folder: str | Path) -> str:
    """The kind of the model that `load_model` would read, without its tensors."""
    return kind_and_config(folder)[0]


def kind_and_config(folder: str | Path) -> tuple[str, dict[str, Any]]:
    """The kind and the config of the model that `load_model` would read, without its tensors."""
    content = _read_model_config(_model_folder(a_path("folder", folder)))
    return content["kind"], content["config"]


def read_checkpoints(run: Path) -> Checkpoints | None:
    """The checkpoints of a training run; None if nothing was saved yet."""
    path = run / CHECKPOINTS_FILE
    if not os.path.lexists(path):
        return None
    content = read_sealed(path)
    check_format(content, FORMAT, path)
    last = content.get("last")
    best = content.get("best")
    checkpoints = Checkpoints(
        check_name(last, path), best if best is None else check_name(best, path)
    )
    for name in (checkpoints.last, checkpoints.best or checkpoints.last):
        if os.path.islink(run / name):
            raise CheckpointError(
                f"{run / name} is a symbolic link; a checkpoint must be a folder of the training run"
            )
    return checkpoints


def write_checkpoints(run: Path, checkpoints: Checkpoints) -> None:
    """Record atomically which checkpoints of a training run are the last and the best."""
    content = {"format": FORMAT, "last": checkpoints.last, "best": checkpoints.best}
    replace_file(run / CHECKPOINTS_FILE, render_sealed(content))


def _model_folder(folder: Path) -> Path:
    folder = existing_folder(folder)
    if os.path.lexists(folder / CONFIG_FILE):
        return folder
    if not os.path.lexists(folder):
        raise NotFoundError(absent(folder))
    checkpoints = read_checkpoints(folder)
    if checkpoints is None:
        raise NotFoundError(f"{folder} holds no model: {_why_no_model(folder)}")
    return folder / (checkpoints.best or checkpoints.last)


def _why_no_model(folder: Path) -> str:
    """What is in place of a model: a file, a folder of other things, or one with models inside."""
    if not folder.is_dir():
        return "it is a file, and a model is a folder"
    marks = (CONFIG_FILE, CHECKPOINTS_FILE)
    inside = sorted(str(path.parent) for mark in marks for path in folder.glob(f"*/{mark}"))
    where = f"; there is one in {' and in '.join(inside[:3])}" if inside else ""
    return f"there is neither {' nor '.join(marks)} in it{where}"


def way_to_use(kind: str) -> str:
    """The end of a sentence about a model of another kind: the command that reads this one.

    >>> way_to_use("language-model"), way_to_use("unknown")
    ('; it is read by regard generate', '')
    """
    return f"; it is read by {COMMANDS[kind]}" if kind in COMMANDS else ""


def _load(folder: Path, kind: str | None) -> SavedModel:
    content = _read_model_config(folder)
    if kind is not None and content["kind"] != kind:
        raise NotFoundError(
            f"{folder} holds a model of kind {content['kind']!r}, and this call needs {kind!r}"
            + way_to_use(content["kind"])
        )
    files = dict(content["files"])
    state = load_tensors(folder / WEIGHTS_FILE, seal=files.pop(WEIGHTS_FILE))
    texts = {}
    for name, expected in files.items():
        data = read_bytes(folder / check_name(name, folder / CONFIG_FILE))
        if hashlib.sha256(data).hexdigest() != expected:
            raise CheckpointError(f"{folder / name} does not match its SHA-256 in {CONFIG_FILE}")
        try:
            texts[name] = data.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{folder / name} is not UTF-8 text: {error}") from None
    return SavedModel(content["config"], state, content["kind"], texts)


def _read_model_config(folder: Path) -> dict[str, Any]:
    """The config of a saved model; a folder of Hugging Face is refused by its name and not as a damaged one."""
    try:
        return _read_config(folder)
    except CheckpointError:
        content = parse_json(read_bytes(folder / CONFIG_FILE), folder / CONFIG_FILE)
        if isinstance(content, dict) and "model_type" in content:
            raise NotFoundError(
                f"{folder} holds a model of Hugging Face, not one of regard's own; load it with transformers, call "
                f"attach(model) of regard.integrations.transformers and use it there, see docs/recipes/hugging-face.md"
            ) from None
        raise


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    content = read_sealed(path)
    check_format(content, FORMAT, path)
    expected = {"kind": str, "config": dict, "files": dict}
    wrong = [name for name, type_ in expected.items() if not isinstance(content.get(name), type_)]
    if wrong or not isinstance(content["files"].get(WEIGHTS_FILE), str):
        raise CheckpointError(
            f"{path} lacks {', '.join(wrong) or WEIGHTS_FILE}, so it is not the config of a saved model"
        )
    return content


def _check_replaceable(folder: Path) -> None:
    """Raise a CheckpointError unless the folder is missing, empty, or holds a saved model and no other files."""
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise OccupiedError(f"{folder} is not a folder; choose another one")
        return
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror}; choose another folder"
        ) from error
    known = {CONFIG_FILE, *_read_config(folder)["files"]} if CONFIG_FILE in names else set()
    if strangers := sorted(names - known):
        raise OccupiedError(
            f"{folder} holds {count_of(len(strangers), 'files')} that a saved model does not have "
            f"({strangers[0]} ...); choose another folder"
        )
