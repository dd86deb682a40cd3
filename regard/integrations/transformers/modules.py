"""The modules of a model: its models and configs, which modules compute attention, and which of them call regard."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from regard.arguments import a_list, count_of, kind_of, suggest, whole
from regard.errors import ArgumentError, UnsupportedError

__all__ = [
    "CONVOLUTION",
    "LOOKUP",
    "RECURRENCES",
    "RECURRING",
    "WRITTEN_OUT",
    "attention_modules",
    "callers",
    "configs_inside",
    "convolves",
    "exchanged_by_default",
    "is_recurrent",
    "layer_names",
    "models_inside",
    "outside_of",
    "packs",
    "owner_of",
    "recurs",
    "exchanged_if_asked",
    "uncalled",
    "written_out",
]

# Modules of ours whose classes take the place of those of a model.
RECURRING = "regard.integrations.transformers.recurring"
WRITTEN_OUT = "regard.integrations.transformers.written_out"
REPLACED = (
    "regard.integrations.transformers.replaced",
    "regard.integrations.transformers.biased",
    "regard.integrations.transformers.windowed",
)
# Functions of transformers for recurrent layers that `recurring` replaces: for a text, and for a token.
RECURRENCES = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "mamba2_chunk_scan",
    "mamba2_selective_state_update",
)
# The function of transformers for short convolutions, and the ends of classes that compute nothing else.
CONVOLUTION = "causal_conv1d_fn"
CONVOLVES = ("ShortConv", "ShortConvolution")
# Ends of the modules of models whose attention is exchanged for that of `replaced`, `biased` and `windowed`.
EXCHANGED = (
    ".modeling_minimax",
    ".modeling_bloom",
    ".modeling_mpt",
    ".modeling_mpnet",
    ".modeling_deberta",
    ".modeling_deberta_v2",
    ".modeling_wavlm",
    ".modeling_trocr",
    ".modeling_donut_swin",
    ".modeling_maskformer_swin",
    ".modeling_swinv2",
    ".modeling_swin2sr",
    ".modeling_clap",
    ".modeling_sam",
    ".modeling_sam_hq",
    ".modeling_got_ocr2",
    ".modeling_vitdet",
)
# What the code of a module reads that calls registered attention.
LOOKUP = "ALL_ATTENTION_FUNCTIONS"
MOST_CLASSES = 4096  # whose code was read
# How the projections of queries, or of all three together, are called.
PROJECTION = re.compile(
    r"(q|query|q_lin|q_proj|wq|in_proj|qkv|qkv_proj|Wqkv|c_attn|query_key_value|q_a_proj|query_proj|to_q|att_proj_qkv)"
)
# Layers that mix positions without scores of queries and keys, by the end of the class's name.
MIXERS = re.compile(
    r"(Mamba\w*Mixer|MambaLayer|GatedDeltaNet|DeltaAttention|LightningAttention|LinearAttention|RecurrentBlock|"
    r"ShortConv|ShortConvolution|RwkvSelfAttention|FourierTransform|FalconH1Mixer|BambaMixer|mLSTMLayer)$"
)
ATTENTION = re.compile(r"Attention|Attn")
# Names of attention, without parts of it and without gates.
ATTENDS = re.compile(
    r"(?<!Gated)(Attention|Attn)(?!\w*(Projection|Output|Norm|Mask|Gate|MLP|Bias|Residual|Layer))"
)
RECURRENT = re.compile(r"Mamba|Delta|Lightning|Linear|Recurrent|Rwkv|FalconH1Mixer|BambaMixer|LSTM")
OWN_CODE = "its attention is written out in its own code, which calls no registered attention"
# Why modules are not computed by regard, by the starts of their classes' names.
REASONS: dict[str | tuple[str, ...], str] = {
    "FalconAttention": "its attention adds ALiBi in its own code, twice in eager attention and once in sdpa",
    "Longformer": "its windows are chunks in its own code",
    "LED": "its encoder's windows are chunks in its own code",
    "BigBird": "its blocks are gathered in its own code",
    ("LongT5", "PegasusX"): "its windows are blocks in its own code",
    ("Reformer", "LSH"): "its attention sorts by hashes in its own code",
    "XLNet": "its two streams of attention are its own code",
    "Autoformer": "it correlates whole series by Fourier transforms, and has no softmax over pairs of queries and keys",
    "InformerProbSparse": "it draws keys at random to choose its queries, in its own code",
    "Funnel": "its pooled relative attention is its own code",
    "MultiheadAttention": "it is PyTorch's own layer, which calls no registered attention",
}


def models_inside(model: nn.Module) -> list[PreTrainedModel]:
    """The model and the models inside of it, the outer ones first."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    models = [module for module in modules if isinstance(module, PreTrainedModel)]
    if not models:
        raise ArgumentError(
            f"attach takes a model of transformers or a module that holds one, not {kind_of(model)}"
        )
    return models


def configs_inside(model: nn.Module) -> list[PreTrainedConfig]:
    """The configs that attention inside a model may read: those of its models, of its modules, and of their parts.

    Some modules hold copies with other sizes, such as the decoders of ViTMAE, VideoMAE, CLIPSeg and X-CLIP.
    """
    models_inside(model)
    waiting: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs: dict[int, PreTrainedConfig] = {}
    while waiting:
        config = waiting.pop(0)
        if isinstance(config, PreTrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return [*configs.values()]


def exchanged_if_asked(part: PreTrainedModel) -> bool:
    """Whether `attach(replace=True)` exchanges the attention of a model: all of it is in modules of `replaced`."""
    return type(part).__module__.endswith(
        ("modeling_longformer", "modeling_led", "modeling_big_bird")
    )


def exchanged_by_default(part: PreTrainedModel) -> bool:
    """Whether `attach` exchanges the attention of a model in any case: that of `biased` and `windowed`, MiniMax's, and
    Falcon's with rotary positions."""
    code = type(part).__module__
    return code.endswith(EXCHANGED) or (code.endswith("modeling_falcon") and not part.config.alibi)


@lru_cache(MOST_CLASSES)
def recurrences(kind: type[nn.Module]) -> tuple[Any, ...]:
    """Those of the functions `RECURRENCES` that the code of a class calls."""
    forward = inspect.unwrap(kind.forward)
    if not isinstance(forward, FunctionType):
        return ()
    names = [name for name in RECURRENCES if name in forward.__code__.co_names]
    return tuple(forward.__globals__[name] for name in names)


def recurs(module: nn.Module) -> bool:
    """Whether a recurrent layer can be exchanged: not if another library set its forward, or a GPU's kernels run it."""
    kind = type(module)
    if kind.__module__ == RECURRING or "forward" in module.__dict__:
        return False
    functions = recurrences(kind)
    if not functions:
        return False
    is_on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    return not (is_on_gpu and any(map(_calls_package, functions)))


def convolves(module: nn.Module) -> bool:
    """Whether a module is a short convolution alone, whose class can be exchanged: not if another library set its
    forward."""
    kind = type(module)
    if kind.__module__ == RECURRING or "forward" in module.__dict__:
        return False
    forward = inspect.unwrap(kind.forward)
    if not isinstance(forward, FunctionType) or not kind.__name__.endswith(CONVOLVES):
        return False
    return CONVOLUTION in forward.__code__.co_names


def packs(module: nn.Module) -> bool:
    """Whether a module has a class of regard that keeps packed documents apart without softmax."""
    kind = type(module)
    return kind.__module__ == RECURRING or (
        kind.__module__ in REPLACED and kind.__name__.endswith("LightningAttention")
    )


def _calls_package(function: Any) -> bool:
    """Whether a function of transformers passes its call on to flash-linear-attention or mamba-ssm."""
    if not isinstance(function, FunctionType):
        return False
    return bool(inspect.getclosurevars(function).nonlocals.get("is_new_implementation"))


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention with weights, by name: those with projections of queries of their own."""
    modules = {}
    for name, module in model.named_modules():
        projects = any(PROJECTION.fullmatch(child) for child, _ in module.named_children())
        if projects and _has_weights(type(module)):
            modules[name] = module
    return modules


def _has_weights(kind: type[nn.Module]) -> bool:
    """Whether a class is one of attention with weights, by its name."""
    if not ATTENTION.search(kind.__name__) or issubclass(kind, PreTrainedModel):
        return False
    return not kind.__name__.endswith("LightningAttention") and not recurrences(kind)


def layer_names(model: nn.Module, layers: Any) -> tuple[str, ...]:
    """The names of the attention modules that were chosen by number or name; of all for None."""
    names = tuple(attention_modules(model))
    if layers is None:
        return names
    if isinstance(layers, str | int):
        layers = [layers]
    chosen = a_list("layers", layers, (str, int), "names or numbers")
    for layer in chosen:
        _refuse_recurrent(model, layer)
    return tuple(dict.fromkeys(_layer_name(layer, names) for layer in chosen))


def _refuse_recurrent(model: nn.Module, layer: str | int) -> None:
    """Raise for the name of a recurrent layer, which `explain` lists beside those of attention in hybrid models."""
    module = dict(model.named_modules()).get(layer) if isinstance(layer, str) else None
    kind = type(module).__name__
    if module is None or not (MIXERS.search(kind) and is_recurrent(kind)):
        return
    raise ArgumentError(
        f"{layer!r} is a recurrent or linear layer ({kind}): it has no softmax over pairs of queries "
        f"and keys, and so no weights; leave it out"
    )


def _layer_name(layer: str | int, names: tuple[str, ...]) -> str:
    """The name of a layer that was chosen by number or name."""
    if isinstance(layer, str):
        if layer not in names:
            raise ArgumentError(
                f"no attention module is called {layer!r}; {suggest(layer, names, 'explain(model, inputs)')}"
            )
        return layer
    if not 0 <= whole("one of layers", layer) < len(names):
        raise ArgumentError(
            f"there is no layer {layer}; the model has {count_of(len(names), 'attention modules')}"
        )
    return names[layer]


@lru_cache(MOST_CLASSES)
def calls_registered(kind: type) -> bool | None:
    """Whether the code of a class, or of one that it derives from, reads registered attention; None without source."""
    if kind.__module__ in (RECURRING, WRITTEN_OUT, *REPLACED):
        return True
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        try:
            if LOOKUP in inspect.getsource(base):
                return True
        except (OSError, TypeError):
            return None
    return False


def callers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that call registered attention, by name; those of attention whose code cannot be read are taken."""
    calling = {}
    attention = attention_modules(model)
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.") or isinstance(module, PreTrainedModel):
            continue
        calls = calls_registered(type(module))
        if calls or (calls is None and name in attention):
            calling[name] = module
    return calling


def _around(name: str) -> list[str]:
    """The names of the modules that a module is in, the outer ones first."""
    return [name[: dot.start()] for dot in re.finditer(r"\.", name)]


def owner_of(model: nn.Module, name: str) -> PreTrainedModel:
    """The innermost model that a module is in; the first one for modules of a wrapper."""
    around = [model, *map(model.get_submodule, _around(name))]
    models = [module for module in around if isinstance(module, PreTrainedModel)]
    return models[-1] if models else models_inside(model)[0]


def _mixing_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that carry numbers from one position to another, by name: attention, and what stands in its place."""
    mixing = attention_modules(model)
    named = {}
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            continue
        kind = type(module)
        if isinstance(module, nn.MultiheadAttention) or MIXERS.search(kind.__name__):
            mixing[name] = module
        if ATTENDS.search(kind.__name__) and next(module.parameters(), None) is not None:
            named[name] = module
    # Of modules that are named attention the innermost ones mix, whatever they project.
    holders = set().union(*map(_around, named))
    mixing |= {name: module for name, module in named.items() if name not in holders}
    outermost = {name for name in mixing if mixing.keys().isdisjoint(_around(name))}
    return {name: module for name, module in model.named_modules() if name in outermost}


def uncalled(model: nn.Module, called: Collection[str]) -> dict[str, nn.Module]:
    """The modules that mix positions, by name, without those that are called or have a called module inside."""
    around = set(called).union(*map(_around, called))
    return {name: module for name, module in _mixing_modules(model).items() if name not in around}


def written_out(model: nn.Module, exchanged: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """The modules whose attention is written out in their own code, which may be plain, by name.

    exchanged: models and modules inside that are replaced by those of regard, with all that they hold.
    """
    modules = {}
    for name, module in _not_exchanged(model, exchanged).items():
        kind = type(module)
        if isinstance(module, nn.MultiheadAttention) or "forward" in module.__dict__:
            continue
        if _reason(kind.__name__) == OWN_CODE:
            modules[name] = module
    return modules


def _not_exchanged(model: nn.Module, exchanged: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """The modules that mix positions and would not call regard, by name."""
    ours: set[int] = set()
    for part in exchanged:
        ours.update(map(id, part.modules()))
    left = uncalled(model, callers(model))
    return {name: module for name, module in left.items() if id(module) not in ours}


def outside_of(
    model: nn.Module, exchanged: Sequence[nn.Module] = (), verdicts: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The modules that mix positions and would not call regard, by name, with the reason; refused if none would call.

    exchanged: models and modules inside that are replaced by those of regard, with all that they hold. verdicts: by
    name, why attention that is written out is not plain; None where it is, which is exchanged too.
    """
    verdicts = verdicts or {}
    calling = callers(model)
    outside = {}
    for name, module in _not_exchanged(model, exchanged).items():
        kind = type(module).__name__
        if name not in verdicts:
            outside[name] = f"{kind}: {_reason(kind)}"
        elif verdicts[name] is not None:
            outside[name] = f"{kind}: its attention is written out, and not plain: {verdicts[name]}"
    is_plain = [name for name, why in verdicts.items() if why is None]
    if not calling and not exchanged and not is_plain:
        raise UnsupportedError(_refusal(model, outside))
    return outside


def is_recurrent(kind: str) -> bool:
    """Whether a class is one of recurrent or linear layers, by its name."""
    return RECURRENT.search(kind) is not None


def _reason(kind: str) -> str:
    """Why a module of a class of this name is not computed by regard."""
    if is_recurrent(kind):
        return "a recurrent or linear layer, which has no softmax over pairs of queries and keys"
    for starts, reason in REASONS.items():
        if kind.startswith(starts):
            return reason
    if ATTENTION.search(kind):
        return OWN_CODE
    return "it mixes positions without attention"


def _refusal(model: nn.Module, outside: dict[str, str]) -> str:
    """Why no module of a model would call regard."""
    models = models_inside(model)
    name = type(models[0]).__name__
    reasons = dict(reason.split(": ", 1) for reason in outside.values())
    silent = {kind: reason for kind, reason in reasons.items() if ATTENTION.search(kind)}
    if not silent:
        layers = "; ".join(dict.fromkeys(outside.values()))
        layers = f" (its layers are {layers})" if layers else ""
        return f"{name} has no attention layer that regard could compute{layers}; it stays as it is"
    why = "; ".join(dict.fromkeys(silent.values()))
    sentence = f"{name} does not call registered attention ({', '.join(sorted(silent))})"
    if any(map(exchanged_if_asked, models)):
        return (
            f"{sentence}: {why}; attach(model, replace=True) exchanges these modules for modules of regard with the "
            f"same weights and numbers"
        )
    return f"{sentence}, so regard would never be called: {why}; its own attention stays as it is"
