"""Conversion of models saved by regard to another number of key/value heads."""

from __future__ import annotations

import hashlib
import json
import zlib
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.arguments import of_kind, whole
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.layers import MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache
from regard.reprs import brief
from regard.storage.tensors import raw_bytes
from regard_lab.conversion.heads import TOLERANCE, Change, Conversion, check_heads, resized
from regard_lab.conversion.own_alignment import Aligned, Calibration, aligned, checked_calibration
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer, load_model
from regard_lab.models.storage import SavedModel
from regard_lab.models.translation_transformer import KIND as TRANSLATION

Model = LanguageModel | TextEncoder | TranslationTransformer


@torch.no_grad()
def difference(model: Model, other: Model) -> float:
    """The largest difference between the outputs of two models for the same ids, in float64, for outputs of size 1."""
    generator = torch.Generator().manual_seed(0)
    length = min(11, model.config.max_length)
    ids = torch.randint(1, model.config.vocab_size, (2, 3, length), generator=generator)
    inputs = tuple(ids) if isinstance(model, TranslationTransformer) else (ids[0],)
    output, expected = (deepcopy(each).double().eval()(*inputs) for each in (model, other))
    return float((output - expected).abs().max() / expected.abs().max().clamp(min=1))


@torch.no_grad()
def kept_of_one(model: Model) -> dict[str, int]:
    """Cache bytes of one id, measured on the model's own caches.

    Keys: "token"; for a translator "source token" and "target token"; "state" for mechanisms that keep sums. Empty for
    an encoder, which has no cache.
    """
    if isinstance(model, TextEncoder):
        return {}
    one = torch.ones(1, 1, dtype=torch.int64)
    state: Any = model.start(one)
    if isinstance(model, TranslationTransformer):
        model.step(one[0], state)
        return {"source token": _bytes(state.contexts), "target token": _bytes(state.caches)}
    caches = [cache for texts in state.groups for cache in texts.caches.each]
    growing = [cache for cache in caches if isinstance(cache, Cache)]
    counts = {"token": _bytes(growing), "state": sum(cache.nbytes for cache in caches if cache not in growing)}
    return {name: count for name, count in counts.items() if count}


def _bytes(parts: list[Cache] | list[ProjectedContext]) -> int:
    """Bytes of keys and values, without free room."""
    tensors = [x for part in parts for x in (part.keys, part.values)]
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))  # all: no int8, no ring


ModelT = TypeVar("ModelT", LanguageModel, TextEncoder, TranslationTransformer)

KINDS: dict[str, type[Model]] = {
    LanguageModel.KIND: LanguageModel,
    TextEncoder.KIND: TextEncoder,
    TRANSLATION: TranslationTransformer,
}
# As in the paper, the encoder of a translator keeps its heads, since they are not cached (Ainslie et al. 2023, 2.2).
OF_A_TRANSLATOR = ("decoder_kv_heads", "cross_kv_heads")
PROVENANCE_FILE = "conversion.json"


def with_kv_heads(
    model: ModelT, kv_heads: int, method: str = "mean", *, calibration: Calibration | None = None
) -> ModelT:
    """A copy of the model with `kv_heads` key/value heads in each attention layer that has a cache.

    Args:
        model: a LanguageModel, TextEncoder or TranslationTransformer (its decoder and cross-attention).
        kv_heads: a smaller number pools heads; a larger one repeats them and leaves the outputs unchanged.
        method: "mean", "first" or "random" of neighbouring heads; "align" rotates heads and groups similar ones, and
            then takes their mean.
        calibration: for "align", runs the model on a text, such as `lambda model: model(ids)`; without one the inputs
            of each layer are taken as independent numbers.

    Raises:
        ArgumentError: numbers of heads that do not divide, or the present number.
        UnsupportedError: "align" with a mechanism whose results depend on the basis of the keys.

    >>> model = LanguageModel(LanguageModel.Config(vocab_size=50, dim=32, heads=8))
    >>> with_kv_heads(model, 2).config.kv_heads
    2
    """
    needs = "a LanguageModel, a TextEncoder or a TranslationTransformer"
    of_kind("model", model, (LanguageModel, TextEncoder, TranslationTransformer), needs)
    kv_heads = whole("kv_heads", kv_heads)
    names = _settings(model)
    now = {name: _kv_heads(model, name) for name in names}
    if all(before == kv_heads for before in now.values()):
        raise ArgumentError(f"this model has {kv_heads} key/value heads already; give another number")
    for before in now.values():
        check_heads(before, kv_heads, method)
    calibration = checked_calibration(calibration)
    if method == "align":
        model = turned(model, kv_heads, calibration).model.to(next(model.parameters()).dtype)
        method = "mean"
    with torch.device("meta"):
        other = type(model)(_changed(model, kv_heads))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layers = _attention_layers(model)
    for name, layer in _attention_layers(other).items():
        for part, wanted in layer.state_dict().items():
            tensor = state[f"{name}.{part}"]
            if (
                tensor.shape != wanted.shape
            ):  # projections of keys and values, and learned parameters per key/value head
                heads = layers[name].kv_heads, layer.kv_heads
                state[f"{name}.{part}"] = resized(tensor, *heads, method, seed_of(f"{name}.{part}"))
    other.load_state_dict(state, assign=True)
    return other.requires_grad_(True).train(model.training)


@brief
@dataclass(frozen=True)
class Converted:
    """A model before and after a conversion, the report, and the text files to save with the new model."""

    before: Model
    after: Model
    report: Conversion
    files: dict[str, str]

    def save(self, folder: str | Path) -> None:
        """Write the new model into a folder atomically."""
        self.after.save(folder, self.files)


def turned(model: Model, kv_heads: int, calibration: Calibration | None, *, regroup: bool = True) -> Aligned:
    """The model with heads rotated and regrouped for `kv_heads` groups; see `aligned`."""
    with torch.device("meta"):
        other = type(model)(_changed(model, kv_heads))
    after = _attention_layers(other)
    groups = {
        name: after[name].kv_heads
        for name, layer in _attention_layers(model).items()
        if after[name].kv_heads < layer.kv_heads
    }
    return aligned(model, groups, calibration, regroup=regroup)


def seed_of(name: str) -> int:
    """The seed of the random heads of a tensor."""
    return zlib.crc32(name.encode())


def load_converted(
    folder: str | Path,
    kv_heads: int,
    method: str = "mean",
    *,
    calibration: Calibration | None = None,
    check: bool = True,
) -> Converted:
    """Load a saved model, or the best one of a training run, and convert it to another number of key/value heads.

    Args:
        folder: a saved model or a training run.
        kv_heads, method, calibration: as for `with_kv_heads`.
        check: compare the outputs with the reference, the original model with each head replaced by its pooled group.

    Raises:
        CheckpointError: missing or damaged files.
        ArgumentError, UnsupportedError: a model or number of heads that cannot be converted.
        RegardError: the outputs differ from the reference.
    """
    saved, model = load_original(folder)
    names = _settings(model)
    changes = {name: Change(_kv_heads(model, name), kv_heads) for name in names}
    repeats = all(change.after >= change.before for change in changes.values())
    source, pooling, invariance, alike = model, method, None, ()
    if method == "align" and not repeats:
        with_kv_heads(model, kv_heads)  # refuses numbers that cannot be, before the text is read
        calibration = checked_calibration(calibration)
        rotated = turned(model, kv_heads, calibration)
        invariance, alike = _checked_invariance(rotated.model, model), rotated.likeness
        source, pooling = rotated.model.to(next(model.parameters()).dtype), "mean"
    other = with_kv_heads(source, kv_heads, "mean" if repeats and method == "align" else pooling)
    twin = model if repeats else _pooled_in_place(source, other, pooling)
    report = Conversion(
        kind=saved.kind,
        method="repeat" if repeats else method,
        heads=model.config.heads,
        kv_heads=changes,
        parameters=Change(_numbers(model), _numbers(other)),
        kv_bytes=_changes(kept_of_one(model), kept_of_one(other)),
        measured=True,
        difference=_checked_difference(other, twin) if check else None,
        invariance=invariance,
        likeness=alike,
    )
    return Converted(model, other, report, {**saved.extra_files, PROVENANCE_FILE: _provenance(saved, report)})


def load_original(folder: str | Path) -> tuple[SavedModel, Any]:
    """The saved model of a folder, and the model itself.

    Raises:
        CheckpointError: missing or damaged files.
        UnsupportedError: a kind of model without key/value heads.
    """
    saved = load_model(folder)
    if saved.kind not in KINDS:
        raise UnsupportedError(
            f"{folder} holds a model of kind {saved.kind!r}, which has no key/value heads; convert one of "
            f"{', '.join(KINDS)}"
        )
    return saved, KINDS[saved.kind].from_saved(saved, str(folder))


def _changed(model: Model, kv_heads: int) -> Any:
    """The model's config with another number of key/value heads."""
    return replace(model.config, **dict.fromkeys(_settings(model), kv_heads))


def _settings(model: Model) -> tuple[str, ...]:
    """The settings of a model's config that hold numbers of key/value heads."""
    return OF_A_TRANSLATOR if isinstance(model, TranslationTransformer) else ("kv_heads",)


def _kv_heads(model: Model, setting: str) -> int:
    kv_heads = getattr(model.config, setting)
    return model.config.heads if kv_heads is None else kv_heads


def _attention_layers(model: torch.nn.Module) -> dict[str, MultiHeadAttention]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, MultiHeadAttention)}


def _pooled_in_place(model: Model, other: Model, method: str) -> Model:
    """The reference: the original model with each key/value head replaced by its pooled group."""
    twin = deepcopy(model)
    after = _attention_layers(other)
    for name, layer in _attention_layers(twin).items():
        wanted, members = after[name].state_dict(), layer.kv_heads // after[name].kv_heads
        for part, tensor in layer.state_dict().items():
            if tensor.shape != wanted[part].shape:
                heads = tensor.unflatten(0, (layer.kv_heads, -1))  # (kv_heads, size, ...)
                for at in range(0, layer.kv_heads, members):
                    group = heads[at : at + members].double()
                    pooled = group[0] if method == "first" else group.mean(0)
                    if method == "random":  # drawn numbers have no other formula than themselves
                        drawn = after[name].state_dict()[part].unflatten(0, (after[name].kv_heads, -1))
                        pooled = drawn[at // members]
                    heads[at : at + members] = pooled.to(tensor.dtype)
    return twin


def _checked_invariance(rotated: Model, model: Model) -> float:
    """How far the outputs of a model with rotated heads are from the model's own, in float64."""
    return _within_rounding(difference(rotated, model), "with rotated heads the outputs of the model change")


def _checked_difference(model: Model, twin: Model) -> float:
    if strange := [name for name, tensor in twin.state_dict().items() if not tensor.isfinite().all()]:
        raise CheckpointError(f"{strange[0]!r} of the model is not finite, so the conversion cannot be checked")
    return _within_rounding(difference(model, twin), "the converted model and its reference differ")


def _within_rounding(largest: float, fault: str) -> float:
    """The difference, if it is one of rounding.

    Raises:
        RegardError: it is larger; `fault` is the beginning of the sentence.
    """
    if not largest <= TOLERANCE:
        raise RegardError(
            f"{fault} by {largest:.1e} (at most {TOLERANCE:.0e}); nothing was written. This is a bug of regard; please "
            f"report it with the config of the model"
        )
    return largest


def _provenance(saved: SavedModel, report: Conversion) -> str:
    """The provenance to save with the weights: the conversion, and a hash of the original weights."""
    digest = hashlib.sha256()
    for name in sorted(saved.state):
        digest.update(name.encode())
        digest.update(raw_bytes(saved.state[name]))
    content = {
        "conversion": "kv-heads",
        "method": report.method,
        "groups": "similar heads" if report.method == "align" else "neighbours",
        "kv_heads": {name: change._asdict() for name, change in report.kv_heads.items()},
        "source_sha256": digest.hexdigest(),
    }
    return json.dumps(content, indent=2) + "\n"


def _numbers(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _changes(before: dict[str, int], after: dict[str, int]) -> dict[str, Change]:
    return {name: Change(count, after[name]) for name, count in before.items()}
