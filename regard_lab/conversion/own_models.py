"""Models of regard: their heads are rotated, regrouped, pooled or repeated, and the whole model is compared."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from regard.arguments import of_kind, shown, whole
from regard.errors import ArgumentError, CheckpointError, UnsupportedError
from regard.layers import MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache
from regard.mechanisms import Dot, General, ScaledDot, Softmax
from regard.positions import Rotary
from regard.reprs import brief
from regard_lab.conversion.alignment import align
from regard_lab.conversion.heads import (
    Change,
    Conversion,
    HeadedLayer,
    KeySpace,
    as_json,
    check_heads,
    hash_of_tensors,
    largest_difference,
    pooled_by_loops,
    provenance,
    resized,
    within_rounding,
)
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer, load_model
from regard_lab.models.kinds import TRANSFORMERS, Transformer
from regard_lab.models.language import LAYER_OPTIONS
from regard_lab.models.storage import SavedModel

ModelT = TypeVar("ModelT", bound=Transformer)
Calibration = Callable[[Any], object]
"""Runs a model on some text, such as `lambda model: model(ids)`."""

# As in the paper, the encoder of a translator keeps its heads, since they are not cached (Ainslie et al. 2023, 2.2).
OF_A_TRANSLATOR = ("decoder_kv_heads", "cross_kv_heads")
PROVENANCE_FILE = "conversion.json"
OF_A_LAYER = ("to_q", "to_k", "to_v", "to_output")


def with_kv_heads(
    model: ModelT, kv_heads: int, method: str = "mean", *, calibration: Calibration | None = None
) -> ModelT:
    """A copy of the model with `kv_heads` key/value heads in each attention layer that has a cache.

    Args:
        model: a LanguageModel, TextEncoder or TranslationTransformer (its decoder and cross-attention).
        kv_heads: a smaller number pools heads; a larger one repeats them and leaves the outputs unchanged.
        method: "mean" or "first" of neighbouring heads; "align" rotates heads and groups similar ones, and
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
    _changes(model, kv_heads, method)
    calibration = checked_calibration(calibration)
    source = model
    if method == "align":
        source = _like(turned(model, kv_heads, calibration), model)
    return _pooled(source, kv_heads, method)


@brief
@dataclass(frozen=True)
class Converted:
    """A model before and after a conversion, the report, and the text files to save with the new model."""

    before: Transformer
    after: Transformer
    report: Conversion
    files: dict[str, str]

    def save(self, folder: str | Path) -> None:
        """Write the new model into a folder atomically."""
        self.after.save(folder, self.files)


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
    changes = _changes(model, kv_heads, method)
    calibration = checked_calibration(calibration)
    repeats = all(change.after >= change.before for change in changes.values())

    source = model
    invariance = None
    if method == "align" and not repeats:
        rotated = turned(model, kv_heads, calibration)
        fault = "with rotated heads the outputs of the model change"
        invariance = within_rounding(difference(rotated, model), fault)
        source = _like(rotated, model)
    converted = _pooled(source, kv_heads, method)

    largest = None
    if check:
        reference = model if repeats else _reference(source, converted, method)
        _refuse_not_finite(reference)
        fault = "the converted model and its reference differ"
        largest = within_rounding(difference(converted, reference), fault)

    method = "repeat" if repeats else method
    return compared(
        saved,
        model,
        converted,
        provenance(method, {"kv_heads": as_json(changes)}),
        method=method,
        kv_heads=changes,
        difference=largest,
        invariance=invariance,
    )


def _refuse_not_finite(model: Transformer) -> None:
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{name!r} of the model is not finite, so the conversion cannot be checked"
            )


def compared(
    saved: SavedModel,
    model: Transformer,
    converted: Transformer,
    record: dict[str, Any],
    **about: Any,
) -> Converted:
    """The old and the new model, and the report of what changed.

    Args:
        record: what the new model records of its conversion.
        about: the fields of the report that cannot be computed from the models.
    """
    bytes_before = kept_of_one(model)
    bytes_after = kept_of_one(converted)
    report = Conversion(
        kind=saved.kind,
        heads=model.config.heads,
        parameters=Change(count_of_parameters(model), count_of_parameters(converted)),
        kv_bytes={name: Change(count, bytes_after[name]) for name, count in bytes_before.items()},
        measured=True,
        **about,
    )
    record = {**record, "source_sha256": hash_of_tensors(saved.state)}
    files = {**saved.extra_files, PROVENANCE_FILE: json.dumps(record, indent=2) + "\n"}
    return Converted(model, converted, report, files)


def load_original(folder: str | Path) -> tuple[SavedModel, Any]:
    """The saved model of a folder, and the model itself."""
    saved = load_model(folder)
    if saved.kind not in TRANSFORMERS:
        raise UnsupportedError(
            f"{folder} holds a model of kind {saved.kind!r}, which has no key/value heads; convert one of "
            f"{', '.join(TRANSFORMERS)}"
        )
    return saved, TRANSFORMERS[saved.kind].from_saved(saved, str(folder))


def checked_calibration(calibration: object) -> Calibration | None:
    """A calibration, or None."""
    if calibration is not None and not callable(calibration):
        raise ArgumentError(
            f"calibration is {shown(calibration)}; it needs a function that runs the model on a text"
        )
    return calibration


# Pooling


def _changes(model: Transformer, kv_heads: int, method: str) -> dict[str, Change]:
    """The numbers of heads before and after, by setting; a number that cannot be is refused."""
    kv_heads = whole("kv_heads", kv_heads)
    changes = {}
    for name in _settings(model):
        before = getattr(model.config, name) or model.config.heads
        changes[name] = Change(before, kv_heads)
    if all(change.before == kv_heads for change in changes.values()):
        raise ArgumentError(
            f"this model has {kv_heads} key/value heads already; give another number"
        )
    for change in changes.values():
        check_heads(change.before, kv_heads, method)
    _unfilled(model, kv_heads)  # its config may refuse the number
    return changes


def _settings(model: Transformer) -> tuple[str, ...]:
    """The settings of a model's config that hold numbers of key/value heads."""
    return OF_A_TRANSLATOR if isinstance(model, TranslationTransformer) else ("kv_heads",)


def _unfilled(model: ModelT, kv_heads: int) -> ModelT:
    """The model with another number of key/value heads, without its weights."""
    config: Any = replace(model.config, **dict.fromkeys(_settings(model), kv_heads))
    with torch.device("meta"):
        return type(model)(config)


def _like(rotated: ModelT, model: ModelT) -> ModelT:
    """The rotated model in the dtype of the original."""
    return rotated.to(next(model.parameters()).dtype).train(model.training)


def attention_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """The attention layers of a model by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, MultiHeadAttention)
    }


def _tensors_of_heads(model: Transformer, converted: Transformer) -> Iterator[tuple[str, Change]]:
    """The tensors with key/value heads in their first axis, and their heads where the two models differ in them.

    These are projections of keys and values, and parameters of mechanisms for each key/value head.
    """
    layers_after = attention_layers(converted)
    for name, layer in attention_layers(model).items():
        layer_after = layers_after[name]
        state_after = layer_after.state_dict()
        for part, tensor in layer.state_dict().items():
            if tensor.shape != state_after[part].shape:
                # Differences have two keys for each value.
                parts = layer.terms if part.startswith("to_k") else 1
                heads = Change(parts * layer.kv_heads, parts * layer_after.kv_heads)
                yield f"{name}.{part}", heads


def _pooled(model: ModelT, kv_heads: int, method: str) -> ModelT:
    """The model with its heads pooled or repeated; it shares no weights with the original."""
    converted = _unfilled(model, kv_heads)
    pooling = "mean" if method == "align" else method
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, (before, after) in _tensors_of_heads(model, converted):
        state[name] = resized(state[name], before, after, pooling)
    converted.load_state_dict(state, assign=True)
    return converted.requires_grad_(True).train(model.training)


def _reference(model: ModelT, converted: ModelT, method: str) -> ModelT:
    """The original model with each key/value head replaced by its pooled group."""
    reference = deepcopy(model)
    state = reference.state_dict()
    for name, (before, after) in _tensors_of_heads(model, converted):
        heads = state[name].unflatten(0, (before, -1))  # (before, size, ...)
        pooled = pooled_by_loops(heads, after, method)
        heads.copy_(pooled.repeat_interleave(before // after, 0))
    return reference


# Alignment


@torch.no_grad()
def turned(
    model: ModelT, kv_heads: int, calibration: Calibration | None, *, regroup: bool = True
) -> ModelT:
    """A copy of a model in float64 with rotated and regrouped heads; its outputs are the model's own.

    Args:
        kv_heads: the number of key/value heads after the conversion.
        calibration: runs the model on a text; None for closeness without a text.
        regroup: whether heads may be regrouped, where query heads differ in their projections only.
    """
    hindering = [name for name in LAYER_OPTIONS if name != "qk_norm"]
    given = [name for name in hindering if getattr(model.config, name, 0)]
    if given:
        raise UnsupportedError(
            f"align rotates values and lets heads change places, which {', '.join(given)} of this model does not "
            f"allow; use method mean or first"
        )
    layers_after = attention_layers(_unfilled(model, kv_heads))
    groups = {}  # key/value heads after the conversion, of each layer that gets fewer
    for name, layer in attention_layers(model).items():
        if layers_after[name].kv_heads >= layer.kv_heads:
            continue
        groups[name] = layers_after[name].kv_heads
        if not isinstance(_score(layer), ScaledDot | Dot | General):
            raise UnsupportedError(
                f"align rotates keys, which changes the results of {layer.mechanism.declared} in {name}; "
                f"use method mean or first"
            )

    copy = deepcopy(model).double().eval()
    layers = attention_layers(copy)
    moments: dict[str, torch.Tensor] = {}
    if calibration is not None:
        keys = {name: headed(layers[name]).k for name in groups}
        moments = moments_of(keys, lambda: calibration(copy))
    for name, count in groups.items():
        layer = layers[name]
        may_regroup = regroup and not differs_by_head(copy, layer)
        _turn(layer, count, moments.get(name), may_regroup)
    return copy


def _turn(
    layer: MultiHeadAttention, groups: int, moment: torch.Tensor | None, regroup: bool
) -> None:
    """Rotate and regroup the heads of a layer in place."""
    modules = headed(layer)
    projections = modules.read()
    rotary = layer.positions if isinstance(layer.positions, Rotary) else None
    space = KeySpace(rotary, normed=layer.q_norm is not None)
    alignment = align(projections, groups, moment, space, regroup=regroup)
    if not isinstance(_score(layer), General):
        modules.write(alignment.applied(projections))
        return

    # The matrix between queries and keys is rotated in place of the queries.
    modules.write(alignment.applied(projections, queries=False))
    matrix = layer.mechanism.learned["weight"]
    matrix.copy_(alignment.matrices(matrix))


def headed(layer: MultiHeadAttention) -> HeadedLayer:
    """The projections of an attention layer."""
    return HeadedLayer(*map(layer.get_submodule, OF_A_LAYER), layer.heads, layer.kv_heads)


@torch.no_grad()
def moments_of(
    modules: Mapping[str, nn.Module], run: Callable[[], object]
) -> dict[str, torch.Tensor]:
    """The mean of x xᵀ over the inputs x of each module in `run`, with a 1 as last number: (dim + 1, dim + 1)."""
    sums: dict[str, torch.Tensor] = {}
    counts = dict.fromkeys(modules, 0)

    def observe(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].detach().double().flatten(0, -2)
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        sums[name] = sums.get(name, 0) + rows.T @ rows
        counts[name] += len(rows)

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_pre_hook(partial(observe, name)))
        run()
    for name, count in counts.items():
        if not count:
            raise ArgumentError(
                f"the calibration did not run {name!r} of the model; let it call the model on a text"
            )
    return {name: product / counts[name] for name, product in sums.items()}


def _score(layer: MultiHeadAttention) -> object:
    """The score whose softmax a layer computes; None for another mechanism."""
    declared = layer.mechanism.declared
    return declared.score if isinstance(declared, Softmax) else None


def differs_by_head(model: Any, layer: MultiHeadAttention) -> bool:
    """Whether query heads differ in more than their projections, so that they cannot change places."""
    has_slopes = getattr(model.config, "positions", None) == "alibi"
    return has_slopes or layer.sinks is not None or "per_head" in str(layer.pattern)


# What is measured on the whole model


@torch.no_grad()
def difference(model: Transformer, other: Transformer) -> float:
    """The largest difference between the outputs of two models for the same ids, in float64, for outputs of size 1."""
    generator = torch.Generator().manual_seed(0)
    length = min(11, model.config.max_length)
    ids = torch.randint(1, model.config.vocab_size, (2, 3, length), generator=generator)
    inputs = tuple(ids) if isinstance(model, TranslationTransformer) else (ids[0],)
    output = deepcopy(model).double().eval()(*inputs)
    expected = deepcopy(other).double().eval()(*inputs)
    return largest_difference(output, expected)


def count_of_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def kept_of_one(model: Transformer) -> dict[str, int]:
    """Cache bytes of one id, measured on the model's own caches.

    Keys: "token"; for a translator "source token" and "target token"; "state" for mechanisms that keep sums. Empty for
    an encoder, which has no cache.
    """
    if isinstance(model, TextEncoder):
        return {}
    text = torch.ones(1, 1, dtype=torch.int64)
    state: Any = model.start(text)
    if isinstance(model, TranslationTransformer):
        model.step(text[0], state)
        return {"source token": _bytes(state.contexts), "target token": _bytes(state.caches)}

    caches = []
    for texts in state.groups:
        caches += texts.caches.each
    growing = [cache for cache in caches if isinstance(cache, Cache)]
    constant = [cache for cache in caches if not isinstance(cache, Cache)]
    counts = {"token": _bytes(growing), "state": sum(cache.nbytes for cache in constant)}
    return {name: count for name, count in counts.items() if count}


def _bytes(parts: Iterable[Cache | ProjectedContext]) -> int:
    """Bytes of keys and values, without free room."""
    count = 0
    for part in parts:
        # The values of a joined cache are the first numbers of its keys.
        is_joined = isinstance(part, Cache) and part.joined
        tensors = [part.keys] if is_joined else [part.keys, part.values]
        for tensor in tensors:
            assert isinstance(tensor, torch.Tensor)  # no int8 cache is among them, and no ring
            count += tensor.numel() * tensor.element_size()
    return count
