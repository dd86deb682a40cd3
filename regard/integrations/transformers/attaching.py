"""Loads a model, switches its attention to regard and back, and refuses models that would never call it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import transformers
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from regard.arguments import a_path, yes_or_no
from regard.errors import CheckpointError, NotFoundError, UnsupportedError
from regard.integrations.transformers.checking import check_equal
from regard.integrations.transformers.masks import NO_WEIGHTS
from regard.integrations.transformers.modules import (
    callers,
    configs_inside,
    exchangeable,
    models_inside,
    outside_of,
    owner_of,
    replaceable,
)
from regard.integrations.transformers.sharing import HOOKS as SHARED
from regard.integrations.transformers.sharing import share_model, sharing_of

__all__ = ["attach", "attached", "detach", "load_folder"]

NAME = "regard"
REPLACEMENTS = "_regard_replacements"  # what `replace_attention` changed in a model, oldest first
BEFORE, HOOKS = (
    "_regard_before",
    "_regard_hooks",
)  # on a model: its settings by the id of the config; what removes hooks
REPORTED = ("outside", "unchecked")  # on a model: see `attach`
ModelT = TypeVar("ModelT", bound=nn.Module)


def attach(
    model: ModelT,
    *,
    replace: bool = False,
    check: bool = True,
    mesh: Any = None,
    layout: str = "contiguous",
    form: str = "auto",
) -> ModelT:
    """Make regard compute the attention of a loaded model, part by part.

    Modules that would not call regard, such as linear attention or windows in a model's own code, stay as they are.
    `model.outside` names them with the reason. A model without any module that calls regard is refused. Falcon's
    attention is exchanged for a module of regard with the same weights.

    Before it returns, the model is compared with its own eager attention on tiny inputs: three rows of seven ids, of
    which one is padded and one has another last word, or small images or sounds. That is two forward passes without
    gradients, which leave modes, generators and caches as they were. `model.unchecked` names modules that no such input
    reached.

    With `mesh` each process computes its own part of the sequence, and calls the model with the ids of that part, in
    the same order; see `part_of_batch`. Outputs are those of its positions. The gradients of weights are this
    process's part: sum them over the processes.

    Args:
        model: a model of transformers with its weights, or a module that holds one (peft, sentence-transformers).
        replace: exchange the attention modules of Longformer, LED and BigBird, which never call registered attention,
            for modules of regard with the same weights and the same numbers.
        check: False skips the comparison.
        mesh: a DeviceMesh of one dimension, or a ProcessGroup, whose processes share the sequence.
        layout: with `mesh`: "contiguous" or "zigzag", see `regard.distributed.Layout`.
        form: with `mesh`: as for `regard.distributed.attention`.

    Returns:
        The same model, with `outside` (reasons by name) and `unchecked` (names). `detach` gives it back its own
        attention.

    Raises:
        UnsupportedError: no module of the model would call regard, the numbers differ from those of eager attention,
            or the model cannot be divided among processes; nothing was changed.
        ArgumentError: no model of transformers, or layout or form without mesh.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    >>> model = attach(transformers.GPT2Model(config))
    >>> model.config._attn_implementation, model.outside
    ('regard', {})
    >>> detach(model).config._attn_implementation
    'sdpa'
    """
    yes_or_no("check", check)
    exchanged = [part for part in models_inside(model) if exchangeable(part) or (replace and replaceable(part))]
    replaced = {id(part) for part in exchanged if replaceable(part)}
    outside, configs = outside_of(model, exchanged), configs_inside(model)
    before = {id(config): config._attn_implementation for config in configs}
    switched = _configs_to_switch(model, configs, outside)
    sharing = sharing_of(model, mesh, layout, form)  # ty: ignore[invalid-argument-type]
    new = any(before[id(config)] != NAME for config in switched)
    model.__dict__.setdefault(BEFORE, before)

    def switch() -> None:
        if exchanged:
            _replaced().replace_modules(model)
        for config in switched:
            config._attn_implementation_internal = NAME
        for part in exchanged:
            if type(part).__module__.endswith(("modeling_longformer", "modeling_led")):
                part.config._attn_implementation_internal = "eager"  # its windows read the numbers of that mask

    try:
        switch()
        unchecked: tuple[str, ...] = ()
        calling = callers(model)
        _check_set(model, [module for name, module in calling.items() if id(owner_of(model, name)) not in replaced])
        if check and new and not any(one in model.__dict__ for one in (REPLACEMENTS, SHARED)):
            unchecked = check_equal(model, calling, partial(_own_attention, model, configs, bool(exchanged), switch))
    except BaseException:
        detach(model)
        raise
    if new or "outside" not in model.__dict__:
        model.__dict__.update(outside=outside, unchecked=unchecked)
        # Each model inside refuses output_attentions=True: what models return for it without weights differs.
        parts = models_inside(model)
        model.__dict__[HOOKS] = [one.register_forward_pre_hook(_refuse_weights, with_kwargs=True) for one in parts]
    share_model(model, sharing)  # ty: ignore[invalid-argument-type]
    return model


def _configs_to_switch(
    model: nn.Module, configs: list[PreTrainedConfig], outside: dict[str, str]
) -> list[PreTrainedConfig]:
    """The configs without those that modules outside read, and no module that calls regard."""
    calling, read = callers(model), {True: set(), False: set()}
    for name, module in model.named_modules():
        if name in calling or name in outside:
            config = getattr(module, "config", None) or owner_of(model, name).config
            read[name in calling].add(id(config))
    return [config for config in configs if id(config) not in read[False] - read[True]]


def _check_set(model: nn.Module, calling: list[nn.Module]) -> None:
    """Raise for attention modules that would read another implementation from their configs."""
    configs = [(type(one).__name__, getattr(one, "config", None)) for one in calling]
    missed = {kind for kind, config in configs if getattr(config, "_attn_implementation", NAME) != NAME}
    if missed:
        raise UnsupportedError(
            f"attn_implementation='{NAME}' cannot be set on {', '.join(sorted(missed))} inside of "
            f"{type(model).__name__}, so regard would compute a part of it only; nothing was changed"
        )


@contextmanager
def _own_attention(
    model: nn.Module, configs: list[PreTrainedConfig], exchanged: bool, switch: Callable[[], None]
) -> Generator[None]:
    """The model with its own modules and their eager attention inside the block."""
    if exchanged:
        _replaced().restore_modules(model)
    now = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        for config, name in zip(configs, now, strict=True):
            config._attn_implementation_internal = name
        switch()


def _refuse_weights(part: PreTrainedModel, given: Any, keywords: dict[str, Any]) -> None:
    asked = keywords.get("output_attentions")
    if (part.config.output_attentions if asked is None else asked) and part.config._attn_implementation == NAME:
        raise UnsupportedError(NO_WEIGHTS)


def detach(model: ModelT) -> ModelT:
    """Give a model back the attention that it had before `attach`, and undo what `replace_attention` changed.

    Args:
        model: a model that was attached, or made with attn_implementation="regard", which then gets "sdpa".

    Returns:
        The same model.
    """
    for replacement in [*model.__dict__.get(REPLACEMENTS, ())]:
        replacement.undo()
    share_model(model, None)  # ty: ignore[invalid-argument-type]
    for hook in model.__dict__.pop(HOOKS, ()):
        hook.remove()
    for name in REPORTED:
        model.__dict__.pop(name, None)
    before: dict[int, str] = model.__dict__.pop(BEFORE, {})
    if any(replaceable(part) or exchangeable(part) for part in models_inside(model)):
        _replaced().restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME or id(config) in before:
            config._attn_implementation_internal = before.get(id(config), "sdpa")
    return model


def _replaced() -> ModuleType:
    """The replacements, which load the code of the models that they replace."""
    return import_module("regard.integrations.transformers.replaced")


@contextmanager
def attached(model: PreTrainedModel) -> Generator[None]:
    """The model attached, and given back its own attention afterwards if it was not."""
    if any(part.config._attn_implementation == NAME for part in models_inside(model)):
        yield
        return
    attach(model, check=False)
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
