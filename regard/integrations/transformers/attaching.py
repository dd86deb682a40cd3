"""Switches the attention of a loaded model to regard and back, and refuses models that would never call it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from regard.arguments import yes_or_no
from regard.errors import UnsupportedError
from regard.integrations.snapshot import unchanged
from regard.integrations.transformers.comparing import Checked, TinyOutputs, check_equal
from regard.integrations.transformers.latents import expand_latents, keep_latents
from regard.integrations.transformers.masks import NO_WEIGHTS
from regard.integrations.transformers.modules import (
    LOOKUP,
    WRITTEN_OUT,
    callers,
    configs_inside,
    exchanged_by_default,
    exchanged_if_asked,
    is_recurrent,
    models_inside,
    outside_of,
    owner_of,
    packs,
    recurs,
    written_out,
)
from regard.integrations.transformers.packed import check_documents_were_read, pass_documents
from regard.integrations.transformers.packed_layers import exchange_layers, restore_layers
from regard.integrations.transformers.recurring import exchange_recurrent, restore_recurrent
from regard.integrations.transformers.rewinding import allow_drafts, forbid_drafts
from regard.integrations.transformers.sharing import HOOKS as SHARED
from regard.integrations.transformers.sharing import share_model, sharing_of
from regard.integrations.transformers.written_out import (
    exchange_written_out,
    prove_plain,
    restore_written_out,
)
from regard.layers.packed import check_packable, pack_weights, unpack_weights

__all__ = ["attach", "attached", "detach"]

NAME = "regard"
CHANGES = "_regard_changes"  # what `change_attention` changed in a model, oldest first
BEFORE = "_regard_before"  # on a model: its configs with the implementations that they had
HOOKS = "_regard_hooks"  # on a model: what removes hooks
REPORTED = ("outside", "unchecked", "differing", "packed")  # on a model: see `attach`
# Models whose exchanged modules read the numbers of eager attention's mask in their own code.
READ_EAGER_MASKS = ("modeling_longformer", "modeling_led", "modeling_mpt")

ModelT = TypeVar("ModelT", bound=nn.Module)


def attach(
    model: ModelT,
    *,
    replace: bool = False,
    check: bool = True,
    pack: bool = False,
    mesh: Any = None,
    layout: str = "contiguous",
    form: str = "auto",
) -> ModelT:
    """Make regard compute the attention of a loaded model, part by part.

    Modules that would not call regard, such as windows in a model's own code, stay as they are. `model.outside` names
    them with the reason. A model without any module that calls regard is refused. The attention of Bloom, MPT, MPNet,
    DeBERTa, WavLM, TrOCR and Falcon, and of the image encoders of Donut, MaskFormer, CLAP, Swin v2, Swin2SR, SAM,
    SAM-HQ, GOT-OCR 2 and ViTDet is exchanged for modules of regard with the same weights. So are the recurrent layers
    of hybrid models: gated delta (Qwen3-Next, Qwen3.5, OLMo Hybrid), Kimi delta, Mamba-2 and lightning
    (MiniMax); on a GPU with the kernels that transformers calls for them, they stay. Where regard computes all
    memories of a model but MiniMax's, `generate` also takes `assistant_model=` and `prompt_lookup_num_tokens=`: its
    caches go back by copies of the memories.

    Attention that is written out in a model's own code is computed by regard too, where a run on tiny inputs proves
    that it is plain: softmax of scaled products with masks, biases and dropout.

    Before it returns, the model is compared with its own eager attention on tiny inputs: three rows of seven ids, of
    which one is padded and one has another last word, or small images or sounds. A model that differs from its eager
    attention and equals its `sdpa`, such as BLT, is taken, and `model.differing` says so. It also names weights that
    eager attention returns without being asked, as BridgeTower's does. That is three forward passes without gradients,
    which leave hooks, attributes, buffers, configs and generators as they were; the last one finds a model that they
    changed nevertheless. `model.unchecked` names modules that no such input reached.

    With `pack` the weights of its linear layers are packed for inference on a CPU, as `regard.layers.pack_weights`
    says: whole encoders gain, gradients are refused, and `model.packed` names the layers that were packed and their
    bytes. The model is then compared with itself without packed weights, too. Encoder layers of BERT's form are
    computed by few operations, without calls of their modules, unless these have hooks or were changed.

    With `mesh` each process computes its own part of the sequence, and calls the model with the ids of that part, in
    the same order; see `part_of_batch`. Outputs are those of its positions. The gradients of weights are this
    process's part: sum them over the processes.

    Args:
        model: a model of transformers with its weights, or a module that holds one (peft, sentence-transformers).
        replace: exchange the attention modules of Longformer, LED and BigBird, which never call registered attention,
            for modules of regard with the same weights and the same numbers.
        check: False skips the comparison.
        pack: pack the weights of linear layers, in a model in eval mode; `detach` unpacks them.
        mesh: a DeviceMesh of one dimension, or a ProcessGroup, whose processes share the sequence.
        layout: with `mesh`: "contiguous" or "zigzag", see `regard.distributed.Layout`.
        form: with `mesh`: as for `regard.distributed.attention`.

    Returns:
        The same model, with `outside` (reasons by name), `unchecked` (names), `differing` (sentences by the class
        of a model), and with `pack` also `packed`. `detach` gives it back its own attention and its plain weights.

    Raises:
        UnsupportedError: no module of the model would call regard, the numbers differ from those of its own attention,
            its weights cannot be packed, or the model cannot be divided among processes; nothing was changed.
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
    yes_or_no("pack", pack)
    if pack and mesh is not None:
        raise UnsupportedError(
            "weights are packed for one process, and with mesh= several compute a model; leave out pack=True"
        )
    if pack:
        check_packable(model)
    exchanged = [
        part
        for part in models_inside(model)
        if exchanged_by_default(part) or (replace and exchanged_if_asked(part))
    ]
    recurrent = [module for module in model.modules() if recurs(module)]
    verdicts = prove_plain(model, written_out(model, [*exchanged, *recurrent]))
    outside = outside_of(model, [*exchanged, *recurrent], verdicts)
    plain = [model.get_submodule(name) for name, why in verdicts.items() if why is None]
    switch = _Switch(model, exchanged, plain, outside)
    sharing = sharing_of(model, mesh, layout, form)  # ty: ignore[invalid-argument-type]

    is_new = not switch.is_done()
    model.__dict__.setdefault(BEFORE, switch.implementations())
    checked = Checked((), {})
    try:
        switch.do()
        calling = callers(model)
        keep_latents(calling.values(), NAME)
        _check_configs(model, _modules_reading_configs(model, calling, exchanged))
        was_changed = CHANGES in model.__dict__ or SHARED in model.__dict__
        if check and is_new and not was_changed:
            checked = check_equal(model, calling, switch.own_attention)
        if pack:
            _pack(model, check)
    except BaseException:
        detach(model)
        raise

    if is_new or "outside" not in model.__dict__:
        model.__dict__.update(
            outside=outside, unchecked=checked.unreached, differing=checked.differing
        )
        _refuse_weights_of(model, switch.implementations())
        _read_documents_of(model, outside)
        allow_drafts(model, outside)
    share_model(model, sharing)  # ty: ignore[invalid-argument-type]
    return model


def _pack(model: nn.Module, check: bool) -> None:
    """Pack the weights of a model, and compare its outputs with those before."""
    before = TinyOutputs(model) if check else None
    model.__dict__["packed"] = pack_weights(model)
    exchange_layers(model)
    if before is not None:
        before.check_again("with packed weights")


class _Switch:
    """Which modules and configs of a model are switched to regard, and how.

    Args:
        model: the model.
        exchanged: models inside whose modules are exchanged for those of regard.
        plain: modules whose attention is written out, and followed by regard.
        outside: modules that would not call regard, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        exchanged: list[PreTrainedModel],
        plain: list[nn.Module],
        outside: dict[str, str],
    ) -> None:
        self._model = model
        self._exchanged = exchanged
        followed = [module for module in model.modules() if type(module).__module__ == WRITTEN_OUT]
        self._plain = [*plain, *followed]
        self._configs = configs_inside(model)
        self._switched = _configs_to_switch(model, self._configs, outside)
        self._eager = [] if not self._plain else _configs_of_eager_masks(model, self._plain)

    def is_done(self) -> bool:
        switched = [config for config in self._switched if config not in self._eager]
        is_done = all(config._attn_implementation == NAME for config in switched)
        return is_done and all(type(module).__module__ == WRITTEN_OUT for module in self._plain)

    def implementations(self) -> list[tuple[PreTrainedConfig, str]]:
        """The configs with the names of the implementations that they have now."""
        return [(config, config._attn_implementation) for config in self._configs]

    def do(self) -> None:
        exchange_recurrent(self._model)
        if self._exchanged:
            _replaced().replace_modules(self._model)
        for config in self._switched:
            config._attn_implementation_internal = NAME
        exchange_written_out(self._plain)
        for config in self._eager:
            config._attn_implementation_internal = "eager"
        for part in self._exchanged:
            if type(part).__module__.endswith(READ_EAGER_MASKS):
                part.config._attn_implementation_internal = "eager"

    @contextmanager
    def own_attention(self, implementation: str) -> Generator[None]:
        """The model with its own modules, and their own attention of this name, inside the block."""
        _restore_modules(self._model)
        implementations = self.implementations()
        for config in self._configs:
            config._attn_implementation_internal = implementation
        try:
            yield
        finally:
            _set_implementations(implementations)
            self.do()


def _configs_to_switch(
    model: nn.Module, configs: list[PreTrainedConfig], outside: dict[str, str]
) -> list[PreTrainedConfig]:
    """The configs without those that modules outside read, and no module that calls regard."""
    calling = callers(model)
    read_by_callers: set[int] = set()
    read_outside: set[int] = set()
    for name, module in model.named_modules():
        if name not in calling and name not in outside:
            continue
        config = getattr(module, "config", None) or owner_of(model, name).config
        readers = read_by_callers if name in calling else read_outside
        readers.add(id(config))
    left = read_outside - read_by_callers
    return [config for config in configs if id(config) not in left]


def _configs_of_eager_masks(model: nn.Module, plain: list[nn.Module]) -> list[PreTrainedConfig]:
    """The configs of models whose own code reads masks of eager attention, since none of it calls registered one."""
    plain_ids = set(map(id, plain))
    configs = []
    for part in models_inside(model):
        calls_registered = hasattr(sys.modules[type(part).__module__], LOOKUP)
        if not calls_registered and not plain_ids.isdisjoint(map(id, part.modules())):
            configs.append(part.config)
    return configs


def _modules_reading_configs(
    model: nn.Module, calling: dict[str, nn.Module], exchanged: list[PreTrainedModel]
) -> list[nn.Module]:
    """The modules that read from their configs which attention they call.

    Those of `replace=True`, and those whose own code regard follows, do not.
    """
    replaced = {id(part) for part in exchanged if exchanged_if_asked(part)}
    return [
        module
        for name, module in calling.items()
        if id(owner_of(model, name)) not in replaced and type(module).__module__ != WRITTEN_OUT
    ]


def _check_configs(model: nn.Module, modules: Iterable[nn.Module]) -> None:
    """Raise for attention modules that would read another implementation from their configs."""
    missed = set()
    for module in modules:
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", NAME) != NAME:
            missed.add(type(module).__name__)
    if missed:
        raise UnsupportedError(
            f"attn_implementation='{NAME}' cannot be set on {', '.join(sorted(missed))} inside of "
            f"{type(model).__name__}, so regard would compute a part of it only; nothing was changed"
        )


def _refuse_weights_of(
    model: nn.Module, implementations: list[tuple[PreTrainedConfig, str]]
) -> None:
    """Let each model inside refuse output_attentions=True: what models return for it without weights differs."""
    for hook in model.__dict__.get(HOOKS, ()):
        hook.remove()
    refuse = partial(_refuse_weights, implementations)
    model.__dict__[HOOKS] = [
        part.register_forward_pre_hook(refuse, with_kwargs=True) for part in models_inside(model)
    ]


def _read_documents_of(model: nn.Module, outside: dict[str, str]) -> None:
    """Let the models inside that have memories or short convolutions read packed documents from their arguments.

    Those with a layer that would mix documents refuse them.
    """
    would_mix = {}
    reading = {id(module) for module in model.modules() if packs(module)}
    for name in outside:
        layer = model.get_submodule(name)
        if packs(layer):
            continue
        would_mix[id(layer)] = name
        if is_recurrent(type(layer).__name__):
            reading.add(id(layer))
    parts = [
        part for part in models_inside(model) if not reading.isdisjoint(map(id, part.modules()))
    ]
    for part in parts:
        inside = set(map(id, part.modules()))
        names = tuple(inspect.signature(part.forward).parameters)
        holds_another = any(id(other) in inside for other in parts if other is not part)
        if holds_another and "position_ids" in names:
            continue  # which it passes on to the other
        unpacked = tuple(name for layer, name in would_mix.items() if layer in inside)
        read = partial(pass_documents, names, unpacked)
        model.__dict__[HOOKS] += [
            part.register_forward_pre_hook(read, with_kwargs=True),
            part.register_forward_hook(check_documents_were_read, with_kwargs=True),
        ]


def _refuse_weights(
    implementations: list[tuple[PreTrainedConfig, str]],
    part: PreTrainedModel,
    args: Any,
    keywords: dict[str, Any],
) -> None:
    """Before a forward of an attached model: refuse to return weights, also where its own code asks for them.

    implementations: that of each config since `attach`.
    """
    asked = keywords.get("output_attentions")
    if not (part.config.output_attentions if asked is None else asked):
        return
    now = part.config._attn_implementation
    is_followed = any(type(module).__module__ == WRITTEN_OUT for module in part.modules())
    if now == NAME or is_followed or any(map(_replaced().is_exchanged, part.modules())):
        raise UnsupportedError(NO_WEIGHTS)
    was_set = any(config is part.config and name != now for config, name in implementations)
    if not was_set:
        return
    _set_implementations(implementations)
    raise UnsupportedError(
        f"{type(part).__name__} is attached, and was set to {now!r} to return weights, as Whisper's "
        f"generate(return_token_timestamps=True) does by itself; regard stores no weights, and computes the model "
        f"again from now on. Call detach(model) before this, and attach(model) after it"
    )


def detach(model: ModelT) -> ModelT:
    """Give a model back the attention and plain weights of before `attach`, and undo what `change_attention` changed.

    Args:
        model: a model that was attached, or made with attn_implementation="regard", which then gets "sdpa".

    Returns:
        The same model.
    """
    for change in [*model.__dict__.get(CHANGES, ())]:
        change.undo()
    share_model(model, None)  # ty: ignore[invalid-argument-type]
    expand_latents(model)
    restore_layers(model)
    unpack_weights(model)
    forbid_drafts(model)
    for hook in model.__dict__.pop(HOOKS, ()):
        hook.remove()
    for name in REPORTED:
        model.__dict__.pop(name, None)

    implementations: list[tuple[PreTrainedConfig, str]] = model.__dict__.pop(BEFORE, [])
    _restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME:
            config._attn_implementation_internal = "sdpa"
    _set_implementations(implementations)
    return model


def _set_implementations(implementations: list[tuple[PreTrainedConfig, str]]) -> None:
    for config, name in implementations:
        config._attn_implementation_internal = name


def _restore_modules(model: nn.Module) -> None:
    """Give the modules that were exchanged their own classes."""
    restore_recurrent(model)
    restore_written_out(model.modules())
    if any(exchanged_if_asked(part) or exchanged_by_default(part) for part in models_inside(model)):
        _replaced().restore_modules(model)


def _replaced() -> ModuleType:
    """The replacements, which load the code of the models that they replace."""
    return import_module("regard.integrations.transformers.replaced")


@contextmanager
def attached(model: PreTrainedModel) -> Generator[None]:
    """The model attached, and afterwards as it was, whatever runs of the block changed in it."""
    is_attached = any(part.config._attn_implementation == NAME for part in models_inside(model))
    with unchanged(model):
        if is_attached:
            yield
            return
        attach(model, check=False)
        try:
            yield
        finally:
            detach(model)
