"""Models of diffusers computed by regard: U-Nets with text, DiTs, and models such as Flux.

`attach(pipeline)` lets each attention layer compute by regard, with a pattern of your own if you give one; `observe`
collects what layers look at, such as the words that each place of an image looks at. Importing this also adds the name
"regard" to the backends of diffusers' own dispatcher: `model.set_attention_backend("regard")`. Needs
pip install 'regard[diffusers]'.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import suggest
from regard.core.plan import AttentionDetail
from regard.core.result import Want, checked_wants
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.torch import ReplacedCall, replaced_attention
from regard.patterns import Pattern, as_pattern
from regard.reprs import brief

__all__ = ["ImageCall", "ObservedLayers", "attach", "detach", "observe"]

NAME = "regard"
Model = TypeVar("Model")


@dataclass(frozen=True)
class ImageCall(ReplacedCall):
    """What is known of a layer's call before it is computed.

    Args:
        layer: the name of the layer in its model.
        cross: whether keys come from other vectors than queries, such as those of a text. The joint attention of Flux
            is not cross: text and image are one sequence.
    """

    layer: str
    cross: bool


LayerPatternChoice = Pattern | str | None | Callable[[ImageCall], Pattern | str | None]


@brief
@dataclass
class ObservedLayers:
    """The calls of an `observe` block, in order: the layer's name, and its statistics."""

    calls: list[tuple[str, AttentionDetail]] = field(default_factory=list)

    def of(self, ending: str) -> list[AttentionDetail]:
        """The statistics of the layers whose names end so, such as "attn2", the cross-attention of a U-Net."""
        details = [detail for name, detail in self.calls if name.endswith(ending)]
        if not details:
            names = {name for name, _ in self.calls}
            raise ArgumentError(f"no layer is named {ending!r}; {suggest(ending, names)}")
        return details


# What a block of `observe` collects into, and the statistics that it wants.
_watching: ContextVar[tuple[ObservedLayers, tuple[Want, ...]] | None] = ContextVar(
    "_watching", default=None
)
# Whether an attached layer is computing.
_inside: ContextVar[bool] = ContextVar("_inside", default=False)


def attach(model: Model, pattern: LayerPatternChoice = None, *, backend: str = "auto") -> Model:
    """Let regard compute the attention of a model or of all models of a pipeline; outputs stay equal.

    Each layer keeps its processor, whose call of `F.scaled_dot_product_attention` is computed by regard.

    Args:
        model: a model of diffusers, or a pipeline. Text encoders are models of transformers and are left alone.
        pattern: joined by & with what a layer allows: a pattern, its text, or a function of the `ImageCall`, such as a
            window for self-attention alone. Image tokens stand row by row.
        backend: as `attention` takes it.

    Returns:
        The model.

    Raises:
        ArgumentError: no attention layer of diffusers is in it, or it is attached already.
        UnsupportedError: when a layer runs whose processor computes attention by itself, so that regard is not called.

    >>> attach(nn.Linear(2, 2))
    Traceback (most recent call last):
    regard.errors.ArgumentError: Linear holds no attention layer of diffusers; give a model or a pipeline
    """
    if not callable(pattern):
        as_pattern(pattern)
    layers = dict(_layers(model))
    if not layers:
        raise ArgumentError(
            f"{type(model).__name__} holds no attention layer of diffusers; give a model or a pipeline"
        )
    if any(isinstance(layer.processor, _Attached) for layer in layers.values()):
        raise ArgumentError("this model is attached already; call detach(model) first")
    # All are made before the first layer gets its own.
    processors = [
        _attached_processor(layer.processor, name, pattern, backend)
        for name, layer in layers.items()
    ]
    for layer, processor in zip(layers.values(), processors, strict=True):
        layer.processor = processor
    return model


def detach(model: Model) -> Model:
    """Undo `attach`."""
    for _, layer in _layers(model):
        if isinstance(layer.processor, _Attached):
            layer.processor = layer.processor._original
    return model


@contextmanager
def observe(model: Any, want: Iterable[Want] | Want = "weights") -> Generator[ObservedLayers]:
    """Collect statistics of every attention layer of an attached model while it runs in the block.

    Args:
        model: an attached model or pipeline.
        want: statistics, as `attention_detail` takes them.

    Returns:
        A context manager whose `as` target is an `ObservedLayers`.
    """
    if not any(isinstance(layer.processor, _Attached) for _, layer in _layers(model)):
        raise ArgumentError("observe needs an attached model; call attach(model) first")
    observed = ObservedLayers()
    token = _watching.set((observed, checked_wants(want)))
    try:
        yield observed
    finally:
        _watching.reset(token)


class _Attached:
    """Marks processors that compute by regard."""

    _original: Any  # the processor that the layer had


def _attached_processor(
    processor: Any, name: str, pattern: LayerPatternChoice, backend: str
) -> Any:
    """A copy of a processor that computes by regard; its class is derived, so that its signature stays."""
    kind: Any = type(processor)

    @wraps(kind.__call__)
    def call(self: Any, attn: Any, *args: Any, **options: Any) -> Any:
        context = options.get("encoder_hidden_states", args[1] if len(args) > 1 else None)
        is_joint = getattr(attn, "added_kv_proj_dim", None) is not None
        is_cross = context is not None and not is_joint

        def choose(replaced: ReplacedCall) -> Pattern | str | None:
            function: Any = pattern
            return function(ImageCall(**vars(replaced), layer=name, cross=is_cross))

        observed, want = _watching.get() or (None, ())
        layer_pattern = choose if callable(pattern) else pattern
        token = _inside.set(True)
        try:
            with replaced_attention(layer_pattern, want=want, backend=backend) as seen:
                output = kind.__call__(self, attn, *args, **options)
                if not seen.calls:
                    raise UnsupportedError(
                        f"layer {name} computes attention in {kind.__name__} itself, where regard is not called; give "
                        f"it another processor, such as AttnProcessor2_0, or the attention backend 'native'"
                    )
        finally:
            _inside.reset(token)
        if observed is not None:
            observed.calls += [(name, detail) for detail in seen.details]
        return output

    attached = copy.copy(processor)
    attached.__class__ = type(kind.__name__, (_Attached, kind), {"__call__": call})
    attached._original = processor
    return attached


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """The attention layers of a model, or of all models of a pipeline, by their names."""
    parts = {"": model} if isinstance(model, nn.Module) else getattr(model, "components", {})
    for part, inner in parts.items():
        if not isinstance(inner, nn.Module):
            continue
        for name, layer in inner.named_modules():
            has_processor = callable(getattr(layer, "processor", None))
            if has_processor and hasattr(type(layer), "set_processor"):
                yield f"{part}.{name}".strip("."), layer


def _dispatched(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    _parallel_config: Any = None,
) -> torch.Tensor:
    """The backend "regard" of diffusers' dispatcher, for tensors (batch, length, heads, size)."""
    if _parallel_config is not None:
        raise UnsupportedError(
            "diffusers' context parallelism is not computed by regard; use the backend 'native'"
        )
    if attn_mask is not None and attn_mask.dim() == 2:
        attn_mask = attn_mask[:, None, None]  # (batch, k_len), as the backend "native" takes it
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with nullcontext() if _inside.get() else replaced_attention():
        output = F.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return output.transpose(1, 2)


def _register() -> None:
    """Add the name to the backends of the dispatcher, which are an Enum."""
    attention_dispatch = import_module("diffusers.models.attention_dispatch")
    names: Any = attention_dispatch.AttentionBackendName
    if NAME not in names._value2member_map_:
        member = str.__new__(names, NAME)
        member._name_ = NAME.upper()
        member._value_ = NAME
        names._member_map_[NAME.upper()] = member
        names._value2member_map_[NAME] = member
        names._member_names_.append(NAME.upper())
    attention_dispatch._AttentionBackendRegistry.register(names(NAME))(_dispatched)


if find_spec("diffusers") is not None:
    _register()
