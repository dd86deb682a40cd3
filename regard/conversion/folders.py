"""`convert_kv_heads`: a folder in, a folder out, whoever wrote the first."""

from __future__ import annotations

import os
from pathlib import Path

from regard.conversion.llama_folders import PROVENANCE, convert_llama
from regard.conversion.llama_layout import CONFIG_FILE, read_json
from regard.conversion.own_models import PROVENANCE_FILE, load_converted
from regard.conversion.report import Conversion
from regard.errors import CheckpointError
from regard.kinds import a_path


def convert_kv_heads(
    folder: str | Path, out: str | Path, kv_heads: int, *, method: str = "mean", check: bool = True
) -> Conversion:
    """Write a trained model with another number of key/value heads, so that its cache is smaller.

    Neighbouring heads become one, as `resized` says; query heads stay. Until it is trained a little further, expect
    it to say worse things than before. More heads than there are repeat them, and change nothing that it says.

    Args:
        folder: a model or run of ours (LanguageModel, TextEncoder, TranslationTransformer), or a Hugging Face folder of
            the Llama layout (Llama, Mistral, Qwen2, Qwen3) with its weights as safetensors.
        out: a new folder of the same kind, or an earlier conversion, which is replaced.
        kv_heads: key/value heads of each layer; of a translator's decoder and cross-attention.
        method: "mean" of a group, or its "first".
        check: hold the result against its oracle, the same heads repeated, before anything is written.

    Returns:
        What it saves.

    Raises:
        CheckpointError: missing or damaged files, or an `out` that holds something else.
        ArgumentError: heads that do not divide, or another method.
        UnsupportedError: a kind of model, or a tensor in it, that is not understood; pickled weights.

    >>> import tempfile
    >>> from regard.models import LanguageModel
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     model = LanguageModel(LanguageModel.Config(vocab_size=50, dim=32, heads=8, layers=1))
    ...     model.save(f"{parent}/eight")
    ...     done = convert_kv_heads(f"{parent}/eight", f"{parent}/two", 2)
    ...     LanguageModel.load(f"{parent}/two").config.kv_heads, str(done.kv_bytes["token"])
    (2, '256 -> 64')
    """
    folder, out = a_path("folder", folder), a_path("out", out)
    check_out(folder, out)
    if is_hugging_face(folder):
        return convert_llama(folder, out, kv_heads, method, check)
    converted = load_converted(folder, kv_heads, method, check=check)
    converted.save(out)
    return converted.report


def is_hugging_face(folder: Path) -> bool:
    """Is there a config that names the type of a model, as Hugging Face's do?

    Raises:
        CheckpointError: the config is damaged.
    """
    path = folder / CONFIG_FILE
    return path.exists() and "model_type" in read_json(path)


def check_out(folder: Path, out: Path) -> None:
    """Raise a CheckpointError unless `out` is free, or holds an earlier conversion and nothing else."""
    check_apart(folder, out)
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    known = _files_of_conversion(out)
    if known is None or (strangers := {path.name for path in out.iterdir()} - known):
        what = "is no earlier conversion" if known is None else f"holds {sorted(strangers)[0]} beside a conversion"
        raise CheckpointError(f"{out} {what}; choose another folder, or delete it first")


def check_apart(folder: Path, out: Path) -> None:
    """Raise a CheckpointError if one of two folders lies in the other."""
    here, there = folder.resolve(), out.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise CheckpointError(f"{out} and {folder} lie in each other; choose a folder apart, for the original stays")


def _files_of_conversion(out: Path) -> set[str] | None:
    """The names of the files of an earlier conversion; None where there is none."""
    if out.is_symlink() or not (out / CONFIG_FILE).is_file():
        return None
    config = read_json(out / CONFIG_FILE)
    names = config.get("files")  # ours: hashes by name
    if PROVENANCE in config:
        about = config[PROVENANCE]
        names = about.get("files") if isinstance(about, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
    elif not isinstance(names, dict) or PROVENANCE_FILE not in names:
        return None
    return {CONFIG_FILE, *names}
