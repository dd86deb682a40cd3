"""Loads a model of transformers and its tokenizer from a folder, without a network and without code of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from regard.arguments import a_path
from regard.errors import CheckpointError, NotFoundError, UnsupportedError

__all__ = ["load_folder"]

# Weights are read as safetensors alone, since other formats run code.
FOLDER_ALONE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
MOST_CHARACTERS = 300  # of a message of transformers


def load_folder(folder: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a model in eval mode, and its tokenizer, from a folder in the format of Hugging Face.

    Only files of the folder are read: no network, no code of the folder, and weights as safetensors alone.

    Raises:
        NotFoundError: no folder, or one without a tokenizer.
        UnsupportedError: a class that this version of transformers does not have.
        CheckpointError: the weights cannot be read.

    >>> load_folder("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere is not a folder; give one with config.json, weights and a tokenizer
    """
    folder = a_path("folder", folder)
    if not folder.is_dir():
        raise NotFoundError(
            f"{folder} is not a folder; give one with config.json, weights and a tokenizer"
        )

    model_class = _class_of(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **FOLDER_ALONE)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NotFoundError(
            f"{folder} has no tokenizer that transformers can read: {_first_line(error)}"
        ) from error
    try:
        model = model_class.from_pretrained(folder, use_safetensors=True, **FOLDER_ALONE)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the weights in {folder} cannot be read: {_first_line(error)}"
        ) from error
    return model.eval(), tokenizer


def _class_of(folder: Path) -> Any:
    """The class that the config of a folder names; transformers' own choice where it names none."""
    try:
        config = AutoConfig.from_pretrained(folder, **FOLDER_ALONE)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"{folder} has no config that transformers can read: {_first_line(error)}"
        ) from error
    if not config.architectures or not config.architectures[0]:
        return transformers.AutoModel

    name = config.architectures[0]
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise UnsupportedError(
            f"{folder} holds a {name}, which transformers {transformers.__version__} does not have"
        )
    return model_class


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:MOST_CHARACTERS] if lines else type(error).__name__
