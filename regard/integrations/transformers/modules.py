"""The modules of a model: its models and configs, which modules compute attention, and which of them call regard."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from regard.arguments import a_list, count_of, kind_of, suggest, whole
from regard.errors import ArgumentError, UnsupportedError

__all__ = [
    "LOOKUP",
    "RECURRENCES",
    "RECURRING",
    "attention_modules",
    "callers",
    "configs_inside",
    "exchangeable",
    "layer_names",
    "models_inside",
    "outside_of",
    "owner_of",
    "recurs",
    "replaceable",
    "uncalled",
]

RECURRING, *REPLACED = (
    f"regard.integrations.transformers.{name}" for name in ("recurring", "replaced", "biased")
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
# models whose attention is exchanged for that of `replaced` and `biased`
EXCHANGED = tuple(
    f".modeling_{name}"
    for name in ("minimax", "bloom", "mpt", "mpnet", "deberta", "deberta_v2", "wavlm", "trocr")
)
LOOKUP = (
    "ALL_ATTENTION_FUNCTIONS"  # what the code of a module reads that calls registered attention
)
KINDS = 4096  # classes whose code was read
# How the projections of queries, or of all three together, are called.
PROJECTION = re.compile(
    r"(q|query|q_lin|q_proj|wq|in_proj|qkv|qkv_proj|Wqkv|c_attn|query_key_value|q_a_proj|query_proj|to_q|att_proj_qkv)"
)
# Layers that mix positions without scores of queries and keys, by the end of the class's name.
MIXERS = re.compile(
    r"(Mamba\w*Mixer|MambaLayer|GatedDeltaNet|DeltaAttention|LightningAttention|LinearAttention|RecurrentBlock|"
    r"ShortConv|ShortConvolution|RwkvSelfAttention|FourierTransform|FalconH1Mixer|BambaMixer|mLSTMLayer)$"
)
# Names of attention, without parts of it and without gates.
ATTENDS = re.compile(
    r"(?<!Gated)(Attention|Attn)(?!\w*(Projection|Output|Norm|Mask|Gate|MLP|Bias|Residual|Layer))"
)
RECURRENT = re.compile(r"Mamba|Delta|Lightning|Linear|Recurrent|Rwkv|FalconH1Mixer|BambaMixer|LSTM")
# Why modules are not computed by regard, by the starts of their classes' names.
REASONS = {
    (
        "FalconAttention",
    ): "its attention adds ALiBi in its own code, twice in eager attention and once in sdpa",
    ("Longformer",): "its windows are chunks in its own code",
    ("LED",): "its encoder's windows are chunks in its own code",
    ("BigBird",): "its blocks are gathered in its own code",
    ("LongT5", "PegasusX"): "its windows are blocks in its own code",
    ("Reformer", "LSH"): "its attention sorts by hashes in its own code",
    ("XLNet",): "its two streams of attention are its own code",
    ("Funnel",): "its pooled relative attention is its own code",
    ("MultiheadAttention",): "it is PyTorch's own layer, which calls no registered attention",
}


def models_inside(model: nn.Module) -> list[PreTrainedModel]:
    """The model and the models inside of it, the outer ones first."""
    found = (
        [one for one in model.modules() if isinstance(one, PreTrainedModel)]
        if isinstance(model, nn.Module)
        else []
    )
    if not found:
        raise ArgumentError(
            f"attach takes a model of transformers or a module that holds one, not {kind_of(model)}"
        )
    return found


def configs_inside(model: nn.Module) -> list[PreTrainedConfig]:
    """The configs that attention inside a model may read: those of its models, of its modules, and of their parts.

    Some modules hold copies with other sizes, such as the decoders of ViTMAE, VideoMAE, CLIPSeg and X-CLIP.
    """
    models_inside(model)
    held: list[Any] = [getattr(one, "config", None) for one in model.modules()]
    found: dict[int, PreTrainedConfig] = {}
    while held:
        config = held.pop(0)
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            held += [getattr(config, name, None) for name in config.sub_configs]
    return [*found.values()]


def replaceable(part: PreTrainedModel) -> bool:
    """Whether all attention of a model is in modules that have a replacement; see `replaced`."""
    return type(part).__module__.endswith(
        ("modeling_longformer", "modeling_led", "modeling_big_bird")
    )


def exchangeable(part: PreTrainedModel) -> bool:
    """Whether the attention of a model is exchanged by default: that of `biased`, MiniMax's, and Falcon's with rotary
    positions."""
    own = type(part).__module__
    return own.endswith(EXCHANGED) or (own.endswith("modeling_falcon") and not part.config.alibi)


@lru_cache(KINDS)
def recurrences(kind: type[nn.Module]) -> tuple[Any, ...]:
    """Those of the functions `RECURRENCES` that the code of a class calls."""
    own = inspect.unwrap(kind.forward)
    names = own.__code__.co_names if isinstance(own, FunctionType) else ()
    return tuple(own.__globals__[name] for name in RECURRENCES if name in names)


def recurs(module: nn.Module) -> bool:
    """Whether a recurrent layer can be exchanged: not if another library set its forward, or a GPU's kernels run it."""
    kind = type(module)
    if (
        kind.__module__ == RECURRING
        or "forward" in module.__dict__
        or not (functions := recurrences(kind))
    ):
        return False
    held = [
        inspect.getclosurevars(one).nonlocals for one in functions if isinstance(one, FunctionType)
    ]
    # flash-linear-attention or mamba-ssm
    of_packages = any(one.get("is_new_implementation") for one in held)
    return not (of_packages and any(one.is_cuda for one in module.parameters()))


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention with weights, by name: those with projections of queries of their own."""
    found = {}
    for name, module in model.named_modules():
        kind = type(module)
        named = re.search(r"Attention|Attn", kind.__name__) and not issubclass(
            kind, PreTrainedModel
        )
        named = named and not recurrences(kind) and not kind.__name__.endswith("LightningAttention")
        if named and any(PROJECTION.fullmatch(child) for child, _ in module.named_children()):
            found[name] = module
    return found


def layer_names(model: nn.Module, layers: Any) -> tuple[str, ...]:
    """The names of the attention modules that were chosen by number or name; of all for None."""
    there = tuple(attention_modules(model))
    if layers is None:
        return there
    given = (
        [layers]
        if isinstance(layers, str | int)
        else a_list("layers", layers, (str, int), "names or numbers")
    )
    chosen = []
    for one in given:
        if isinstance(one, str) and one not in there:
            raise ArgumentError(
                f"no attention module is called {one!r}; {suggest(one, there, 'explain(model, inputs)')}"
            )
        if not isinstance(one, str) and not 0 <= whole("one of layers", one) < len(there):
            raise ArgumentError(
                f"there is no layer {one}; the model has {count_of(len(there), 'attention modules')}"
            )
        chosen.append(one if isinstance(one, str) else there[one])
    return tuple(dict.fromkeys(chosen))


@lru_cache(KINDS)
def calls_registered(kind: type) -> bool | None:
    """Whether the code of a class, or of one that it derives from, reads registered attention; None without source."""
    if kind.__module__ in (RECURRING, *REPLACED):
        return True
    for one in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        try:
            if LOOKUP in inspect.getsource(one):
                return True
        except (OSError, TypeError):
            return None
    return False


def callers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that call registered attention, by name; those of attention whose code cannot be read are taken."""
    found = {}
    known = attention_modules(model)
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.") or isinstance(module, PreTrainedModel):
            continue
        reads = calls_registered(type(module))
        if reads or (reads is None and name in known):
            found[name] = module
    return found


def _around(name: str) -> list[str]:
    """The names of the modules that a module is in, the outer ones first."""
    return [name[: dot.start()] for dot in re.finditer(r"\.", name)]


def owner_of(model: nn.Module, name: str) -> PreTrainedModel:
    """The innermost model that a module is in; the first one for modules of a wrapper."""
    around = [model, *map(model.get_submodule, _around(name))]
    inside = [one for one in around if isinstance(one, PreTrainedModel)]
    return inside[-1] if inside else models_inside(model)[0]


def _mixing_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that carry numbers from one position to another, by name: attention, and what stands in its place."""
    found = attention_modules(model)
    named = {}
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            continue
        if isinstance(module, nn.MultiheadAttention) or MIXERS.search(type(module).__name__):
            found[name] = module
        if ATTENDS.search(type(module).__name__) and next(module.parameters(), None) is not None:
            named[name] = module
    holders = {one for name in named for one in _around(name)}
    # innermost, whatever it projects
    found |= {name: module for name, module in named.items() if name not in holders}
    inside = {name for name in found if not found.keys().isdisjoint(_around(name))}
    return {
        name: module
        for name, module in model.named_modules()
        if name in found and name not in inside
    }


def uncalled(model: nn.Module, called: Collection[str]) -> dict[str, nn.Module]:
    """The modules that mix positions, by name, without those that are called or have a called module inside."""
    around = {one for name in called for one in (name, *_around(name))}
    return {name: module for name, module in _mixing_modules(model).items() if name not in around}


def outside_of(model: nn.Module, exchanged: Sequence[nn.Module] | None = None) -> dict[str, str]:
    """The modules that mix positions and would not call regard, by name, with the reason; refused if none would call.

    exchanged: models and modules inside that are replaced by those of regard, with all that they hold.
    """
    ours = {id(module) for part in exchanged or () for module in part.modules()}
    calling = callers(model)
    outside = {
        name: _reason(one) for name, one in uncalled(model, calling).items() if id(one) not in ours
    }
    if not calling and not exchanged:
        raise UnsupportedError(_refusal(model, outside))
    return outside


def _reason(module: nn.Module) -> str:
    kind = type(module).__name__
    if RECURRENT.search(kind):
        why = "a recurrent or linear layer, which has no softmax over pairs of queries and keys"
    elif known := [reason for starts, reason in REASONS.items() if kind.startswith(starts)]:
        why = known[0]
    elif re.search(r"Attention|Attn", kind):
        why = "its attention is written out in its own code, which calls no registered attention"
    else:
        why = "it mixes positions without attention"
    return f"{kind}: {why}"


def _refusal(model: nn.Module, outside: dict[str, str]) -> str:
    """Why no module of a model would call regard."""
    models = models_inside(model)
    reasons = [reason.split(": ", 1) for reason in dict.fromkeys(outside.values())]
    name = type(models[0]).__name__
    silent = [(kind, why) for kind, why in reasons if re.search("Attention|Attn", kind)]
    if not silent:
        layers = f" (its layers are {'; '.join(map(': '.join, reasons))})" if reasons else ""
        return f"{name} has no attention layer that regard could compute{layers}; it stays as it is"
    why = "; ".join(dict.fromkeys(why for _, why in silent))
    sentence = f"{name} does not call registered attention ({', '.join(sorted({kind for kind, _ in silent}))})"
    if any(map(replaceable, models)):
        return (
            f"{sentence}: {why}; attach(model, replace=True) exchanges these modules for modules of regard with the "
            f"same weights and numbers"
        )
    return f"{sentence}, so regard would never be called: {why}; its own attention stays as it is"
