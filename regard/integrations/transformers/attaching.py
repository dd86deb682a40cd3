"""Loads a model, switches its attention to regard and back, and refuses models that would never call it."""

from __future__ import annotations

import re
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

from regard.arguments import a_path, kind_of, shown
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.integrations.transformers.checking import callers, check_equal, mixing_modules, models_of
from regard.integrations.transformers.masks import NO_WEIGHTS
from regard.integrations.transformers.sharing import HOOKS as SHARED
from regard.integrations.transformers.sharing import share_model, sharing_of
from regard.reprs import Described

__all__ = ["attach", "detach", "load_folder"]

NAME = "regard"
REPLACEMENTS = "_regard_replacements"  # what `replace_attention` changed in a model, oldest first
BEFORE, HOOKS = "_regard_before", "_regard_hooks"  # on a model: how it was, and what removes its hooks
TOLD = ("outside", "unchecked")  # on a model: see `attach`
ModelT = TypeVar("ModelT", bound=nn.Module)
# Why modules are not computed by regard, by the start of their class's name.
REASONS = {
    "FalconAttention": "its attention adds ALiBi to scores in its own code (with alibi=False it is computed by regard)",
    "Bloom": "its attention adds ALiBi to scores in its own code",
    "Mpt": "its attention adds ALiBi to scores in its own code",
    "Deberta": "its scores add terms for relative positions (disentangled attention) in its own code",
    "Disentangled": "its scores add terms for relative positions (disentangled attention) in its own code",
    "Longformer": "its windows are chunks in its own code",
    "LED": "its encoder's windows are chunks in its own code",
    "BigBird": "its blocks are gathered in its own code",
    "LongT5": "its windows are blocks in its own code",
    "PegasusX": "its windows are blocks in its own code",
    "Reformer": "its attention sorts by hashes in its own code",
    "LSH": "its attention sorts by hashes in its own code",
    "XLNet": "its two streams of attention are its own code",
    "Funnel": "its pooled relative attention is its own code",
    "MultiheadAttention": "it is PyTorch's own layer, which calls no registered attention",
}
RECURRENT = re.compile(r"Mamba|Delta|Lightning|Linear|Recurrent|Rwkv|FalconH1Mixer|BambaMixer|LSTM")
REPLACEABLE = ("modeling_longformer", "modeling_led", "modeling_big_bird")  # see `replaced`


class Attached(Described):
    """The attention settings of a model before `attach`, by the id of the config."""

    def __init__(self, before: dict[int, str]) -> None:
        self.before = before


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
    if not isinstance(check, bool):
        raise ArgumentError(f"check is {shown(check)}; give True or False")
    exchanged = [part for part in models_inside(model) if exchangeable(part) or (replace and replaceable(part))]
    replaced = {id(part) for part in exchanged if replaceable(part)}
    outside = outside_of(model, exchanged)
    configs = configs_inside(model)
    before = {id(config): config._attn_implementation for config in configs}
    kept = _configs_outside(model, outside)
    sharing = sharing_of(model, mesh, layout, form)  # ty: ignore[invalid-argument-type]
    new = any(before[id(config)] != NAME for config in configs if id(config) not in kept)
    if BEFORE not in model.__dict__:
        model.__dict__[BEFORE] = Attached(before)

    def switch() -> None:
        if exchanged:
            _replaced().replace_modules(model)
        for config in configs:
            if id(config) not in kept:
                config._attn_implementation_internal = NAME
        for part in exchanged:
            if replaceable(part):
                part.config._attn_implementation_internal = _mask_of_replaced(part)

    try:
        switch()
        unchecked: tuple[str, ...] = ()
        calling = callers(model)
        _check_set(model, [module for name, module in calling.items() if id(_owner(model, name)) not in replaced])
        if check and new and not any(one in model.__dict__ for one in (REPLACEMENTS, SHARED)):
            unchecked = check_equal(model, calling, partial(_own_attention, configs, exchanged, model, switch))
    except BaseException:
        detach(model)
        raise
    if new or "outside" not in model.__dict__:
        model.__dict__.update(outside=outside, unchecked=unchecked)
        _refuse_weights_of(model)
    share_model(model, sharing)  # ty: ignore[invalid-argument-type]
    return model


def _check_set(model: nn.Module, calling: list[nn.Module]) -> None:
    """Raise for attention modules that would read another implementation from their configs."""
    read = [
        (type(one).__name__, getattr(getattr(one, "config", None), "_attn_implementation", NAME)) for one in calling
    ]
    missed = sorted({kind for kind, name in read if name != NAME})
    if missed:
        raise UnsupportedError(
            f"attn_implementation='{NAME}' cannot be set on {', '.join(missed)} inside of "
            f"{type(model).__name__}, so regard would compute a part of it only; nothing was changed"
        )


@contextmanager
def _own_attention(
    configs: list[PreTrainedConfig],
    exchanged: list[PreTrainedModel],
    model: nn.Module,
    switch: Callable[[], None],
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


def outside_of(model: nn.Module, exchanged: list[PreTrainedModel] | None = None) -> dict[str, str]:
    """The modules that mix positions and would not call regard, by name, with the reason.

    Raises:
        UnsupportedError: no module would call it.
    """
    exchanged = exchanged or []
    ours = {id(module) for part in exchanged for module in part.modules()}
    calling = callers(model)
    outside = {}
    for name, module in mixing_modules(model).items():
        inner = any(one == name or one.startswith(f"{name}.") for one in calling)
        if not inner and id(module) not in ours:
            outside[name] = _reason(module)
    if not calling and not exchanged:
        raise UnsupportedError(_refusal(model, outside))
    return outside


def _reason(module: nn.Module) -> str:
    kind = type(module).__name__
    if RECURRENT.search(kind):
        return f"{kind}: a recurrent or linear layer, which has no softmax over pairs of queries and keys"
    known = next((reason for start, reason in REASONS.items() if kind.startswith(start)), None)
    if known is not None:
        return f"{kind}: {known}"
    if not re.search(r"Attention|Attn", kind):
        return f"{kind}: it mixes positions without attention"
    return f"{kind}: its attention is written out in its own code, which calls no registered attention"


def _refusal(model: nn.Module, outside: dict[str, str]) -> str:
    """Why no module of a model would call regard."""
    part = next(models_of(model))
    name, reasons = type(part).__name__, list(dict.fromkeys(outside.values()))
    silent = sorted(
        {reason.partition(":")[0] for reason in reasons if re.search("Attention|Attn", reason.split(":")[0])}
    )
    if not silent:
        layers = f" (its layers are {'; '.join(reasons)})" if reasons else ""
        return f"{name} has no attention layer that regard could compute{layers}; it stays as it is"
    causes = [reason.partition(": ")[2] for reason in reasons if reason.partition(":")[0] in silent]
    why = "; ".join(dict.fromkeys(causes))
    sentence = f"{name} does not call registered attention ({', '.join(silent)})"
    if any(replaceable(one) for one in models_inside(model)):
        return (
            f"{sentence}: {why}; attach(model, replace=True) exchanges these modules for modules of regard with the "
            f"same weights and numbers"
        )
    return f"{sentence}, so regard would never be called: {why}; its own attention stays as it is"


def _configs_outside(model: nn.Module, outside: dict[str, str]) -> set[int]:
    """The configs that modules outside read, and no module that calls regard."""
    calling, read = callers(model), {True: set(), False: set()}
    for name, module in model.named_modules():
        inside = any(one == name for one in calling)
        if inside or name in outside:
            config = getattr(module, "config", None) or _owner(model, name).config
            read[inside].add(id(config))
    return read[False] - read[True]


def _owner(model: nn.Module, name: str) -> PreTrainedModel:
    """The innermost model that a module is in; the first one for modules of a wrapper."""
    around = [model.get_submodule(name[: dot.start()]) for dot in re.finditer(r"\.", name)]
    inside = [one for one in (model, *around) if isinstance(one, PreTrainedModel)]
    return inside[-1] if inside else next(models_of(model))


def _refuse_weights_of(model: nn.Module) -> None:
    """Let each model inside refuse output_attentions=True: what models return for it without weights differs."""
    model.__dict__[HOOKS] = [
        part.register_forward_pre_hook(_refuse_weights, with_kwargs=True) for part in models_inside(model)
    ]


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
    for name in TOLD:
        model.__dict__.pop(name, None)
    attached: Attached | None = model.__dict__.pop(BEFORE, None)
    before = {} if attached is None else attached.before
    if any(replaceable(part) or exchangeable(part) for part in models_inside(model)):
        _replaced().restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME or id(config) in before:
            config._attn_implementation_internal = before.get(id(config), "sdpa")
    return model


def models_inside(model: nn.Module) -> list[PreTrainedModel]:
    """The model and the models inside of it."""
    found = (
        [part for part in model.modules() if isinstance(part, PreTrainedModel)] if isinstance(model, nn.Module) else []
    )
    if not found:
        raise ArgumentError(f"attach takes a model of transformers or a module that holds one, not {kind_of(model)}")
    return found


def configs_inside(model: nn.Module) -> list[PreTrainedConfig]:
    """The configs that attention inside a model may read: those of its models, of its modules, and of their parts.

    Some modules hold copies with other sizes, such as the decoders of ViTMAE, VideoMAE, CLIPSeg and X-CLIP.
    """
    models_inside(model)
    held: list[Any] = [
        one.config for one in model.modules() if isinstance(getattr(one, "config", None), PreTrainedConfig)
    ]
    found: dict[int, PreTrainedConfig] = {}
    while held:
        config = held.pop(0)
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            held += [getattr(config, name, None) for name in config.sub_configs]
    return [*found.values()]


def replaceable(part: PreTrainedModel) -> bool:
    """Whether all attention of a model is in modules that have a replacement."""
    return type(part).__module__.endswith(tuple(REPLACEABLE))


def exchangeable(part: PreTrainedModel) -> bool:
    """Whether the attention of a model is exchanged by default: that of Falcon with rotary positions."""
    return type(part).__module__.endswith("modeling_falcon") and not part.config.alibi


def _mask_of_replaced(part: PreTrainedModel) -> str:
    """The implementation whose mask the replaced modules read: the windows of Longformer read numbers."""
    return "eager" if type(part).__module__.endswith(("modeling_longformer", "modeling_led")) else NAME


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
