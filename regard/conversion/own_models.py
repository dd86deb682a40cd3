"""Our own models with another number of key/value heads."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.arguments import whole
from regard.conversion.heads import check as check_heads
from regard.conversion.heads import resized
from regard.conversion.measures import TOLERANCE, Model, difference, kept_of_one
from regard.conversion.report import Change, Conversion
from regard.conversion.tensor_files import raw_bytes
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.kinds import of_kind
from regard.layers import MultiHeadAttention
from regard.models import LanguageModel, TextEncoder, TranslationTransformer, load_model
from regard.models.storage import SavedModel
from regard.models.translation_transformer import KIND as TRANSLATION

ModelT = TypeVar("ModelT", LanguageModel, TextEncoder, TranslationTransformer)

KINDS: dict[str, type[Model]] = {
    LanguageModel.KIND: LanguageModel,
    TextEncoder.KIND: TextEncoder,
    TRANSLATION: TranslationTransformer,
}
# The encoder of a translator keeps its heads, as in the paper: no cache holds them (Ainslie et al. 2023, section 2.2).
OF_A_TRANSLATOR = ("decoder_kv_heads", "cross_kv_heads")
PROVENANCE_FILE = "conversion.json"


def with_kv_heads(model: ModelT, kv_heads: int, method: str = "mean") -> ModelT:
    """The model with so many key/value heads in each attention layer that keeps its past; it shares no weight with it.

    Args:
        model: a LanguageModel, TextEncoder or TranslationTransformer (its decoder and cross-attention).
        kv_heads: fewer pool neighbours; more repeat them, and nothing that the model says changes.
        method: "mean" or "first".

    Raises:
        ArgumentError: heads that do not divide, or as many as there are.

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
        raise ArgumentError(f"this model has {kv_heads} key/value heads already; ask for another number")
    for before in now.values():
        check_heads(before, kv_heads, method)
    changed: Any = replace(model.config, **dict.fromkeys(names, kv_heads))
    with torch.device("meta"):
        other = type(model)(changed)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layers = _attention_layers(model)
    for name, layer in _attention_layers(other).items():
        for part, wanted in layer.state_dict().items():
            tensor = state[f"{name}.{part}"]
            if tensor.shape != wanted.shape:  # keys, values, and what a mechanism learned for each of their heads
                state[f"{name}.{part}"] = resized(tensor, layers[name].kv_heads, layer.kv_heads, method)
    other.load_state_dict(state, assign=True)
    return other.requires_grad_(True).train(model.training)


@dataclass(frozen=True)
class Converted:
    """A model before and after, what changed, and the texts that are kept beside the new one."""

    before: Model
    after: Model
    report: Conversion
    files: dict[str, str]

    def save(self, folder: str | Path) -> None:
        """Write the new model into a folder, whole or not at all."""
        self.after.save(folder, self.files)


def load_converted(folder: str | Path, kv_heads: int, method: str = "mean", *, check: bool = True) -> Converted:
    """A saved model, or the best one of a run, with another number of key/value heads.

    Args:
        folder: what `save` or a training wrote.
        kv_heads, method: as for `with_kv_heads`.
        check: hold it against its oracle, the model before with each head replaced by what its group became.

    Raises:
        CheckpointError: missing or damaged.
        ArgumentError, UnsupportedError: what cannot be converted so.
        RegardError: the oracle says something else.
    """
    saved = load_model(folder)
    if saved.kind not in KINDS:
        raise UnsupportedError(
            f"{folder} holds a model of kind {saved.kind!r}, which has no key/value heads; those that have are "
            f"{', '.join(KINDS)}"
        )
    model: Any = KINDS[saved.kind].from_saved(saved, str(folder))
    other = with_kv_heads(model, kv_heads, method)
    names = _settings(model)
    changes = {name: Change(_kv_heads(model, name), kv_heads) for name in names}
    repeats = all(change.after >= change.before for change in changes.values())
    twin = model if repeats else _pooled_in_place(model, other, method)
    report = Conversion(
        kind=saved.kind,
        method="repeat" if repeats else method,
        heads=model.config.heads,
        kv_heads=changes,
        parameters=Change(_numbers(model), _numbers(other)),
        kv_bytes=_changes(kept_of_one(model), kept_of_one(other)),
        measured=True,
        difference=_checked_difference(other, twin) if check else None,
    )
    return Converted(model, other, report, {**saved.extra_files, PROVENANCE_FILE: _provenance(saved, report)})


def _settings(model: Model) -> tuple[str, ...]:
    """The settings of a model that say how many key/value heads its layers have."""
    return OF_A_TRANSLATOR if isinstance(model, TranslationTransformer) else ("kv_heads",)


def _kv_heads(model: Model, setting: str) -> int:
    found = getattr(model.config, setting)
    return model.config.heads if found is None else found


def _attention_layers(model: torch.nn.Module) -> dict[str, MultiHeadAttention]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, MultiHeadAttention)}


def _pooled_in_place(model: Model, other: Model, method: str) -> Model:
    """The model before, each key/value head replaced by what its group becomes: the oracle of the model after."""
    twin = deepcopy(model)
    after = _attention_layers(other)
    for name, layer in _attention_layers(twin).items():
        wanted, members = after[name].state_dict(), layer.kv_heads // after[name].kv_heads
        for part, tensor in layer.state_dict().items():
            if tensor.shape != wanted[part].shape:
                heads = tensor.unflatten(0, (layer.kv_heads, -1))  # (kv_heads, size, ...)
                for at in range(0, layer.kv_heads, members):
                    group = heads[at : at + members].double()
                    heads[at : at + members] = (group[0] if method == "first" else group.mean(0)).to(tensor.dtype)
    return twin


def _checked_difference(model: Model, twin: Model) -> float:
    if strange := [name for name, tensor in twin.state_dict().items() if not tensor.isfinite().all()]:
        raise CheckpointError(f"{strange[0]!r} of the model is not finite, so nothing can be said about its conversion")
    found = difference(model, twin)
    if not found <= TOLERANCE:
        raise RegardError(
            f"the converted model and the one with its heads repeated differ by {found:.1e} (at most {TOLERANCE:.0e}); "
            f"nothing was written. This is a fault of regard: please report it with the model's config"
        )
    return found


def _provenance(saved: SavedModel, report: Conversion) -> str:
    """Where the weights come from, to be kept with them: what was done, and a hash of what it was done to."""
    digest = hashlib.sha256()
    for name in sorted(saved.state):
        digest.update(name.encode())
        digest.update(raw_bytes(saved.state[name]))
    content = {
        "conversion": "kv-heads",
        "method": report.method,
        "groups": "neighbours",
        "kv_heads": {name: change._asdict() for name, change in report.kv_heads.items()},
        "source_sha256": digest.hexdigest(),
    }
    return json.dumps(content, indent=2) + "\n"


def _numbers(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _changes(before: dict[str, int], after: dict[str, int]) -> dict[str, Change]:
    return {name: Change(count, after[name]) for name, count in before.items()}
