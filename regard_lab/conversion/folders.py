"""`convert_kv_heads`: convert a folder of regard or Hugging Face to another number of key/value heads."""

import os
from pathlib import Path
from typing import Any

from regard.arguments import a_path
from regard.errors import OccupiedError
from regard_lab.conversion.heads import Conversion
from regard_lab.conversion.own_models import (
    PROVENANCE_FILE,
    Calibration,
    checked_calibration,
    load_converted,
)
from regard_lab.conversion.pretrained import (
    CONFIG_FILE,
    PROVENANCE,
    PretrainedConversion,
    read_json,
)


def convert_kv_heads(
    folder: str | Path,
    out: str | Path,
    kv_heads: int,
    *,
    method: str | None = None,
    calibration: Calibration | None = None,
    check: bool = True,
) -> Conversion:
    """Convert a trained model to another number of key/value heads; fewer make its cache smaller.

    Groups of heads are pooled into one, see `resized` and `align`. Expect lower quality until the model is trained a
    little further. A larger number repeats heads and leaves the outputs unchanged.

    Args:
        folder: a model or training run of regard (LanguageModel, TextEncoder, TranslationTransformer), or a Hugging
            Face folder with safetensors weights, of a decoder whose config has num_key_value_heads, such as Llama,
            Mistral, Qwen3, Gemma, Phi or StableLM.
        out: a new folder of the same kind; an earlier conversion there is replaced.
        kv_heads: key/value heads of each layer; in a translator, of the decoder and the cross-attention.
        method: "mean" or "first" of neighbouring heads; "align" rotates heads and groups similar ones, which
            changes no output, and then takes their mean. "align" by default with a calibration, otherwise "mean".
        calibration: for "align", runs the model on a text, such as `lambda model: model(ids)`. For a Hugging Face
            folder it receives the model of transformers without its head.
        check: compare the result with its reference, the same heads repeated, before it is written.

    Returns:
        The report: heads, parameters and cache bytes before and after.

    Raises:
        CheckpointError: missing or damaged files, or an `out` that holds other files.
        ArgumentError: numbers of heads that do not divide, or an unknown method.
        UnsupportedError: an unknown kind of model or tensor, or pickled weights.

    >>> import tempfile
    >>> from regard_lab.models import LanguageModel
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     model = LanguageModel(LanguageModel.Config(vocab_size=50, dim=32, heads=8, layers=1))
    ...     model.save(f"{parent}/eight")
    ...     done = convert_kv_heads(f"{parent}/eight", f"{parent}/two", 2)
    ...     LanguageModel.load(f"{parent}/two").config.kv_heads, str(done.kv_bytes["token"])
    (2, '256 -> 64')
    """
    folder = a_path("folder", folder)
    out = a_path("out", out)
    calibration = checked_calibration(calibration)
    method = method_of(method, calibration)
    check_out(folder, out)
    if is_hugging_face(folder):
        conversion = PretrainedConversion(folder, kv_heads, method)
        conversion.convert(calibration, check=check)
        conversion.save(out)
        return conversion.report()
    converted = load_converted(folder, kv_heads, method, calibration=calibration, check=check)
    converted.save(out)
    return converted.report


def method_of(method: str | None, text: object) -> str:
    """The method to use if none is given: "align" with a text to calibrate it on, otherwise "mean"."""
    if method is not None:
        return method
    return "mean" if text is None else "align"


def is_hugging_face(folder: Path) -> bool:
    """Whether the folder has a config with a `model_type`, as Hugging Face's do."""
    path = folder / CONFIG_FILE
    return path.exists() and "model_type" in read_json(path)


def check_out(folder: Path, out: Path) -> None:
    """Raise a CheckpointError unless `out` is new or empty, or holds an earlier conversion only."""
    check_apart(folder, out)
    if is_new_or_empty(out):
        return

    way = "choose another folder, or delete it first"
    known = _files_of_conversion(out)
    if known is None:
        raise OccupiedError(f"{out} is not an earlier conversion; {way}")
    strangers = sorted({path.name for path in out.iterdir()} - known)
    if strangers:
        raise OccupiedError(f"{out} holds {strangers[0]} beside a conversion; {way}")


def earlier_conversion(out: Path) -> str | None:
    """What the earlier conversion in `out` changed, such as "8 to 2 key/value heads by mean"; None if there is none."""
    if _files_of_conversion(out) is None:
        return None
    record: Any = read_json(out / CONFIG_FILE).get(PROVENANCE)
    if record is not None:
        heads = record.get("num_key_value_heads")
    else:
        record = read_json(out / PROVENANCE_FILE)
        if record.get("conversion") == "latent":
            return f"keys and values to latents of {record.get('latent_dim')} numbers"
        # A translator has two sides, which are converted alike.
        of_sides = record.get("kv_heads") or {}
        heads = next(iter(of_sides.values()), None)
    if not isinstance(heads, dict) or not {"before", "after"} <= heads.keys():
        return "what it changed is not written in it"
    return f"{heads['before']} to {heads['after']} key/value heads by {record.get('method')}"


def is_new_or_empty(out: Path) -> bool:
    """Whether a folder can be written there without replacing anything."""
    return not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir()))


def check_apart(folder: Path, out: Path) -> None:
    """Raise a CheckpointError if one of the two folders contains the other."""
    original = folder.resolve()
    converted = out.resolve()
    if original == converted:
        raise OccupiedError(
            f"{out} is the folder of the original, which is kept; choose another folder"
        )
    if original in converted.parents or converted in original.parents:
        raise OccupiedError(
            f"{out} and {folder} contain each other; choose a separate folder, since the original is kept"
        )


def _files_of_conversion(out: Path) -> set[str] | None:
    """The names of the files of an earlier conversion, or None."""
    if out.is_symlink() or not (out / CONFIG_FILE).is_file():
        return None
    config = read_json(out / CONFIG_FILE)
    if PROVENANCE not in config:
        hashes = config.get("files")  # by name; a model of regard has them
        if not isinstance(hashes, dict) or PROVENANCE_FILE not in hashes:
            return None
        return {CONFIG_FILE, *hashes}

    record = config[PROVENANCE]
    names = record.get("files") if isinstance(record, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return {CONFIG_FILE, *names}
