"""Loads a model, switches its attention to regard and back, and refuses models that would never call it."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import transformers
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from regard.arguments import a_path, kind_of
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.integrations.transformers.attending import attention_modules
from regard.integrations.transformers.sharing import share_model, sharing_of
from regard.reprs import Described

__all__ = ["attach", "detach", "load_folder"]

NAME = "regard"
REPLACEMENTS = "_regard_replacements"  # what `replace_attention` changed in a model, oldest first
ModelT = TypeVar("ModelT", bound=PreTrainedModel)
LOOKUP = "ALL_ATTENTION_FUNCTIONS"  # what a module reads that calls registered attention
# Why families that are asked for often cannot be attached, by the start of a class's name.
REASONS = {
    "Falcon": "its attention adds ALiBi and splits heads inside its own code",
    "Bloom": "its attention fuses ALiBi into its own baddbmm",
    "Deberta": "its scores add terms for relative positions (disentangled attention) in its own code",
    "Longformer": "its windows are chunks in its own code",
    "LED": "its encoder's windows are chunks in its own code",
    "BigBird": "its blocks are gathered in its own code",
    "Reformer": "its attention sorts by hashes in its own code",
    "XLNet": "its two streams of attention are its own code",
    "Funnel": "its pooled relative attention is its own code",
}
REPLACEABLE = ("modeling_longformer", "modeling_led", "modeling_big_bird")  # see `replaced`


class Attached(Described):
    """The attention settings of a model before `attach`."""

    def __init__(self, before: dict[int, str]) -> None:
        self.before = before


def attach(
    model: ModelT, *, replace: bool = False, mesh: Any = None, layout: str = "contiguous", form: str = "auto"
) -> ModelT:
    """Make regard compute every attention of a loaded model.

    With `mesh` each process computes its own part of the sequence, and calls the model with the ids of that part, in
    the same order; see `part_of_batch`. Outputs are those of its positions. The gradients of weights are this
    process's part: sum them over the processes.

    Args:
        model: a model of transformers, with its weights.
        replace: exchange the attention modules of Longformer, LED and BigBird, which never call registered attention,
            for modules of regard with the same weights and the same numbers.
        mesh: a DeviceMesh of one dimension, or a ProcessGroup, whose processes share the sequence.
        layout: with `mesh`: "contiguous" or "zigzag", see `regard.distributed.Layout`.
        form: with `mesh`: as for `regard.distributed.attention`.

    Returns:
        The same model. `detach` gives it back its own attention.

    Raises:
        UnsupportedError: a part of the model would never call regard, or the model cannot be divided among processes;
            nothing was changed.
        ArgumentError: no model of transformers, or layout or form without mesh.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    >>> model = attach(transformers.GPT2Model(config))
    >>> model.config._attn_implementation
    'regard'
    >>> detach(model).config._attn_implementation
    'sdpa'
    """
    parts = models_inside(model)
    by_modules = {id(part) for part in parts if replace and replaceable(part)}
    for part in parts:
        if id(part) not in by_modules and (reason := refusal(part)) is not None:
            raise UnsupportedError(reason)
    sharing = sharing_of(model, mesh, layout, form)
    before = {id(config): config._attn_implementation for config in configs_inside(model)}
    if NAME not in before.values():
        model.__dict__["_regard_before"] = Attached(before)
    if by_modules:
        _replaced().replace_modules(model)
        for part in parts:
            if id(part) in by_modules:
                part.config._attn_implementation = _mask_of_replaced(part)
    else:
        model.set_attn_implementation(NAME)
        for config in copies_inside(model):
            config._attn_implementation = NAME
    missed = _missed([part for part in parts if id(part) not in by_modules])
    if missed:
        detach(model)
        raise UnsupportedError(
            f"attn_implementation='{NAME}' cannot be set on {', '.join(missed)} inside of "
            f"{type(model).__name__}, so regard would compute a part of it only; nothing was changed"
        )
    share_model(model, sharing)
    return model


def _missed(parts: list[PreTrainedModel]) -> list[str]:
    """Classes of models and of attention modules that would read another implementation from their configs."""
    modules = {id(module): module for part in parts for module in (part, *attention_modules(part).values())}
    found = set()
    for module in modules.values():
        named = getattr(getattr(module, "config", None), "_attn_implementation", NAME)
        if named != NAME:
            found.add(type(module).__name__)
    return sorted(found)


def detach(model: ModelT) -> ModelT:
    """Give a model back the attention that it had before `attach`, and undo what `replace_attention` changed.

    Args:
        model: a model that was attached, or made with attn_implementation="regard", which then gets "sdpa".

    Returns:
        The same model.
    """
    for replacement in [*model.__dict__.get(REPLACEMENTS, ())]:
        replacement.undo()
    share_model(model, None)
    attached: Attached | None = model.__dict__.pop("_regard_before", None)
    before = {} if attached is None else attached.before
    if any(replaceable(part) for part in models_inside(model)):
        _replaced().restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME or id(config) in before:
            config._attn_implementation = before.get(id(config), "sdpa")
    return model


def models_inside(model: nn.Module) -> list[PreTrainedModel]:
    """The model and the models inside of it."""
    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(f"attach takes a model of transformers, not {kind_of(model)}")
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def configs_inside(model: nn.Module) -> list[PreTrainedConfig]:
    """The configs that attention inside a model may read: those of its models, and the copies."""
    own = {id(part.config): part.config for part in models_inside(model)}
    return [*own.values(), *copies_inside(model)]


def copies_inside(model: nn.Module) -> list[PreTrainedConfig]:
    """Configs of modules that are no models, such as the decoders of ViTMAE, VideoMAE, CLIPSeg and X-CLIP.

    These are copies with other sizes. transformers sets the name of an implementation on the configs of models alone.
    """
    known = {id(part.config) for part in models_inside(model)}
    held = [
        module.config for module in model.modules() if isinstance(getattr(module, "config", None), PreTrainedConfig)
    ]
    copies = {id(one): one for one in held if isinstance(one, PreTrainedConfig) and id(one) not in known}
    return [*copies.values()]


def replaceable(part: PreTrainedModel) -> bool:
    """Whether all attention of a model is in modules that have a replacement."""
    return type(part).__module__.endswith(tuple(REPLACEABLE))


def _mask_of_replaced(part: PreTrainedModel) -> str:
    """The implementation whose mask the replaced modules read: the windows of Longformer read numbers."""
    return "eager" if type(part).__module__.endswith(("modeling_longformer", "modeling_led")) else NAME


def _replaced() -> ModuleType:
    """The replacements, which load the code of the models that they replace."""
    return import_module("regard.integrations.transformers.replaced")


def refusal(part: PreTrainedModel) -> str | None:
    """Why a model would not call registered attention, or None.

    transformers sets the name of an implementation on any model, and warns at most: a model that never reads it would
    keep computing by itself, with a mask that was made for another function.
    """
    own = attention_modules(part)
    silent = sorted({type(module).__name__ for module in own.values() if not calls_registered(module)})
    if silent or not type(part)._can_set_attn_implementation():
        name = type(part).__name__
        why = next((reason for start, reason in REASONS.items() if name.startswith(start)), None)
        which = f" ({', '.join(silent)})" if silent else ""
        if replaceable(part):
            return (
                f"{name} does not call registered attention{which}: {why}; attach(model, replace=True) exchanges these "
                f"modules for modules of regard with the same weights and numbers"
            )
        return (
            f"{name} does not call registered attention{which}, so regard would never be asked: "
            f"{why or 'its attention is written out in its own code'}; its own attention stays as it is"
        )
    return None


def calls_registered(module: nn.Module) -> bool:
    """Whether the code of a module, or of the class that defines its forward, reads registered attention."""
    for kind in type(module).__mro__:
        if kind is nn.Module:
            break
        try:
            if LOOKUP in inspect.getsource(kind):
                return True
        except (OSError, TypeError):
            return True  # without source nothing is known; `explain` shows modules that never called
    return False


@contextmanager
def attached(model: PreTrainedModel) -> Generator[None]:
    """The model attached, and given back its own attention afterwards if it was not."""
    if any(part.config._attn_implementation == NAME for part in models_inside(model)):
        yield
        return
    attach(model)
    try:
        yield
    finally:
        detach(model)


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
        raise NotFoundError(f"{folder} is not a folder; give one with config.json, weights and a tokenizer")
    own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(f"{folder} has no config that transformers can read: {_first(error)}") from error
    named = (config.architectures or [None])[0]
    kind = getattr(transformers, named, None) if named else transformers.AutoModel
    if kind is None:
        raise UnsupportedError(f"{folder} holds a {named}, which transformers {transformers.__version__} does not have")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NotFoundError(f"{folder} has no tokenizer that transformers can read: {_first(error)}") from error
    try:
        model = kind.from_pretrained(folder, use_safetensors=True, **own)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {folder} cannot be read: {_first(error)}") from error
    return model.eval(), tokenizer


def _first(error: Exception) -> str:
    """The first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
