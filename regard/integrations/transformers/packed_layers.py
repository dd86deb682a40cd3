"""Encoder layers of BERT's form with packed weights, computed by few operations of PyTorch.

The product of oneDNN also adds the residual, or applies the activation, while the result is in the processor's cache.
The modules of a layer are not called, since Python is slow here: each product fills the caches with weights, and a line
of Python after it takes ten times as long as in a loop. The feed-forward part computes many rows in blocks. So its
hidden numbers stay in the cache, and no layer asks the system for their memory again.

For up to 64 rows and one thread, the compiled library computes everything but attention, in two calls; see
`layer_program`.

A layer calls its modules as before if it was changed, has hooks, or something watches the operations of PyTorch.
"""

from __future__ import annotations

import sys
from functools import cache, wraps
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.activations import GELUActivation

from regard.backends.native.program import MOST_ROWS
from regard.exporting import exporting
from regard.functional.measured import is_unwatched
from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.layer_program import LayerProgram
from regard.layers.packed import PackedLinear
from regard.layers.projection import hooks_of_all_modules

__all__ = ["exchange_layers", "restore_layers"]

IMPLEMENTATION = "regard"
SETTING = "_attn_implementation_internal"  # of a config, where its property reads it
KEPT = "_regard_kept"  # the attribute of a layer that holds its `_Kept`
# A module with one of these attributes of its own does not call the forward of its class.
REPLACED = frozenset(("forward", "_compiled_call_impl"))
MODELS = "transformers.models."
# The classes of layers whose code is that of BERT, by their modules in transformers.
LAYERS = {
    "align.modeling_align": "AlignTextLayer",
    "altclip.modeling_altclip": "AltRobertaLayer",
    "bert.modeling_bert": "BertLayer",
    "bert_generation.modeling_bert_generation": "BertGenerationLayer",
    "camembert.modeling_camembert": "CamembertLayer",
    "chinese_clip.modeling_chinese_clip": "ChineseCLIPTextLayer",
    "clap.modeling_clap": "ClapTextLayer",
    "data2vec.modeling_data2vec_text": "Data2VecTextLayer",
    "electra.modeling_electra": "ElectraLayer",
    "ernie.modeling_ernie": "ErnieLayer",
    "layoutlm.modeling_layoutlm": "LayoutLMLayer",
    "markuplm.modeling_markuplm": "MarkupLMLayer",
    "roberta.modeling_roberta": "RobertaLayer",
    "roc_bert.modeling_roc_bert": "RoCBertLayer",
    "splinter.modeling_splinter": "SplinterLayer",
    "xlm_roberta.modeling_xlm_roberta": "XLMRobertaLayer",
}
PARTS = ("Attention", "SelfAttention", "SelfOutput", "Intermediate", "Output")
# The modules that follow attention, and those that follow the activation.
AFTER = ("dense", "LayerNorm", "dropout")
# Arguments with which a layer reads keys of another text or of a cache.
OTHER_KEYS = {"cache", "past_key_values", "encoder_hidden_states", "encoder_attention_mask"}
ROWS = 256  # of a block: its products are as fast as those of more rows


class _Computed(NamedTuple):
    """The modules of a layer that compute something."""

    heads: Any
    query: PackedLinear
    key: PackedLinear
    value: PackedLinear
    mix: PackedLinear
    mixed_norm: nn.LayerNorm
    widen: PackedLinear
    activation: nn.Module
    narrow: PackedLinear
    norm: nn.LayerNorm

    def linears(self) -> tuple[PackedLinear, ...]:
        return self.query, self.key, self.value, self.mix, self.widen, self.narrow


class _Kept:
    """The modules that a layer had when they were read, and by which each call sees quickly that none has changed."""

    def __init__(self, layer: nn.Module, computed: _Computed, activation: str) -> None:
        self.computed = computed
        self.activation = activation
        self.dtype = computed.query.dtype
        self.program: LayerProgram | None = None
        self._modules = [module for module in layer.modules() if module is not layer]
        self._kinds = [*map(type, self._modules)]
        self._states = [module.__dict__ for module in self._modules]
        self._children = [module._modules for module in (layer, *self._modules)]
        self._held = self._children_now()
        # The dictionaries themselves, so that hooks that are set later are noticed.
        self._hooks = [module._forward_hooks for module in self._modules]
        self._hooks += [module._forward_pre_hooks for module in self._modules]

    def holds(self) -> bool:
        """Whether the layer has the same modules, and each computes what its class says."""
        return (
            self._children_now() == self._held
            and [*map(type, self._modules)] == self._kinds
            and not any(self._hooks)
            and not any(map(_is_training, self._states))
            and all(map(REPLACED.isdisjoint, self._states))
            and all(map(PackedLinear.is_current, self.computed.linears()))
            and _name_of(self.computed.activation) == self.activation
            and self.computed.heads.config.__dict__.get(SETTING) == IMPLEMENTATION
        )

    def _children_now(self) -> list[tuple[Any, ...]]:
        return [tuple(children.values()) for children in self._children]


_is_training = itemgetter("training")


def exchange_layers(model: nn.Module) -> None:
    """Let the encoder layers of a model whose weights are packed call few operations."""
    for module in model.modules():
        kind = type(module)
        if kind.__module__ != __name__ and _parts_of(kind) is not None:
            module.__class__ = _class_for(kind)


def restore_layers(model: nn.Module) -> None:
    """The opposite of `exchange_layers`."""
    for module in model.modules():
        if type(module).__module__ == __name__:
            module.__class__ = type(module).__mro__[1]
            module.__dict__.pop(KEPT, None)


@cache
def _parts_of(kind: type[nn.Module]) -> tuple[type, ...] | None:
    """The classes of the parts of such a layer, in the order of PARTS; None if this is no class of LAYERS."""
    name = LAYERS.get(kind.__module__.removeprefix(MODELS))
    if name is None or kind.__name__ != name:
        return None
    beside = vars(sys.modules[kind.__module__])
    return tuple(beside[f"{name.removesuffix('Layer')}{part}"] for part in PARTS)


@cache
def _class_for(kind: Any) -> type[nn.Module]:
    """The subclass of a layer's class that calls few operations where it can."""
    parts = _parts_of(kind)
    assert parts is not None

    @wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **options: Any) -> torch.Tensor:
        output = None if torch.compiler.is_compiling() else _compute(self, parts, args, options)
        return kind.forward(self, *args, **options) if output is None else output

    # Pickle finds classes by name, and cannot find one that is made here.
    def reduce(self: nn.Module, protocol: Any) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name != KEPT}
        return _new_module, (kind,), state

    members = {"__reduce_ex__": reduce, "__module__": __name__, "__doc__": kind.__doc__}
    made: Any = type(f"Packed{kind.__name__}", (kind,), members)
    # transformers wraps the forward that a new class has, for gradients that are computed with less memory.
    made.forward = forward
    return made


def _new_module(kind: type[nn.Module]) -> nn.Module:
    """A module without attributes, which pickle sets."""
    return object.__new__(_class_for(kind))


def _compute(
    layer: Any, parts: tuple[type, ...], args: tuple[Any, ...], options: dict[str, Any]
) -> torch.Tensor | None:
    """The output of a layer, (batch, length, dim); None where its modules have to be called."""
    if not args or args[2:].count(None) != len(args[2:]) or layer.chunk_size_feed_forward:
        return None
    given = {name: value for name, value in options.items() if value is not None}
    x = args[0]
    mask = args[1] if len(args) > 1 else given.pop("attention_mask", None)
    if not OTHER_KEYS.isdisjoint(given) or _are_modules_needed():
        return None
    kept = layer.__dict__.get(KEPT)
    if kept is None or not kept.holds():
        kept = layer.__dict__[KEPT] = _look_at(layer, parts)
        if kept is None:
            return None
    if type(x) is not torch.Tensor or x.dim() != 3 or not x.is_cpu or x.dtype != kept.dtype:
        return None

    if x.shape[2] != kept.computed.query.in_features:
        return None  # the module reports it
    # With one thread the programs are faster for few rows. With several, oneDNN divides its products among them.
    program = kept.program
    is_small = 0 < x.shape[0] * x.shape[1] <= MOST_ROWS and torch.get_num_threads() == 1
    if program is None or not is_small or not program.begin():
        mixed = _attended(kept.computed, _heads(kept.computed, x), x, mask, given)
        return _behind_attention(kept, mixed, x)
    try:
        rows = x.contiguous().view(-1, x.shape[2])
        mixed = _attended(kept.computed, program.heads(rows), x, mask, given)
        if mixed.dtype != x.dtype:
            return _behind_attention(kept, mixed, x)
        return program.outputs(mixed.view(len(rows), -1), rows).view(x.shape)
    finally:
        program.end()


def _heads(computed: _Computed, x: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values, (batch, length, width) each."""
    linears = (computed.query, computed.key, computed.value)
    return [linear.multiply_and_activate(x, "none") for linear in linears]


def _attended(
    computed: _Computed,
    heads: list[torch.Tensor],
    x: torch.Tensor,
    mask: Any,
    options: dict[str, Any],
) -> torch.Tensor:
    """The outputs of attention, (batch, length, width), as the module of BERT calls it."""
    module = computed.heads
    batch, length, _ = x.shape
    by_head = (batch, length, -1, module.attention_head_size)
    q, k, v = (numbers.view(by_head).transpose(1, 2) for numbers in heads)
    output, _ = regard_attention(module, q, k, v, mask, scaling=module.scaling, **options)
    return output.reshape(batch, length, -1).contiguous()


def _behind_attention(kept: _Kept, mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The outputs of a layer by operations of PyTorch."""
    computed = kept.computed
    summed = computed.mix.multiply_and_add(mixed, x)
    rows = _normed(computed.mixed_norm, summed).view(-1, x.shape[2])
    blocks = rows.tensor_split(-(-len(rows) // ROWS)) if len(rows) > ROWS else (rows,)
    outputs = []
    for block in blocks:
        hidden = computed.widen.multiply_and_activate(block, kept.activation)
        outputs.append(_normed(computed.norm, computed.narrow.multiply_and_add(hidden, block)))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output.view(x.shape)


def _normed(norm: Any, x: torch.Tensor) -> torch.Tensor:
    weights = norm._parameters
    return torch.layer_norm(x, norm.normalized_shape, weights["weight"], weights["bias"], norm.eps)


def _are_modules_needed() -> bool:
    """Whether the modules must be called: for autograd, autocast, an exporter, hooks or what watches this thread."""
    return (
        torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or exporting()
        or hooks_of_all_modules()
        or not is_unwatched()
    )


def _look_at(layer: nn.Module, parts: tuple[type, ...]) -> _Kept | None:
    """The modules that a layer has now; None if one of them does more than in BERT's code."""
    try:
        own: dict[str, Any] = layer._modules
        attention, widening, narrowing = own["attention"], own["intermediate"], own["output"]
        heads, mixing = attention._modules["self"], attention._modules["output"]
        query, key, value = map(heads._modules.__getitem__, ("query", "key", "value"))
        mix, mixed_norm, mixed_dropout = map(mixing._modules.__getitem__, AFTER)
        widen, activation = widening._modules["dense"], widening._modules["intermediate_act_fn"]
        narrow, norm, dropout = map(narrowing._modules.__getitem__, AFTER)
    except (AttributeError, KeyError):  # other modules in their place
        return None
    around = (attention, heads, mixing, widening, narrowing)
    name = _name_of(activation)
    if tuple(map(type, around)) != parts or name is None:
        return None
    if not type(mixed_norm) is type(norm) is nn.LayerNorm:
        return None
    if not type(mixed_dropout) is type(dropout) is nn.Dropout:
        return None
    computed = _Computed(heads, query, key, value, mix, mixed_norm, widen, activation, narrow, norm)
    if any(type(linear) is not PackedLinear for linear in computed.linears()):
        return None
    dtypes = {linear.dtype for linear in computed.linears()}
    dtypes.update((mixed_norm.weight.dtype, norm.weight.dtype))
    kept = _Kept(layer, computed, name)
    if len(dtypes) > 1 or not kept.holds():
        return None
    kept.program = LayerProgram.of(computed, name)
    return kept


def _name_of(activation: Any) -> str | None:
    """The name of an activation that oneDNN applies to a product."""
    if type(activation) is GELUActivation and activation.act is nn.functional.gelu:
        return "gelu"
    return "relu" if type(activation) is nn.ReLU else None
