"""Checks of a layer's sizes and arguments, and the combinations of context, cache and pattern that it refuses."""

from __future__ import annotations

import torch

from regard.arguments import count_of, shown, whole
from regard.core.tensors import is_casting, refuse_layout
from regard.errors import ArgumentError, KeywordError, ShapeError, UnsupportedError
from regard.layers.caches import Cache, RecurrentState
from regard.mechanisms import Mechanism
from regard.patterns import Pattern

MOST_LISTED = 1_024  # heads whose divisors a message lists


def checked_sizes(
    dim: int, heads: int, kv_heads: int | None, head_dim: int | None, context_dim: int | None
) -> tuple[int, int, int, int, int]:
    """The sizes of an attention layer with defaults filled in; an ArgumentError if they do not fit."""
    dim, heads = whole("dim", dim, 1), whole("heads", heads, 1)
    kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
    context_dim = dim if context_dim is None else whole("context_dim", context_dim, 1)
    head_dim = head_dim if head_dim is None else whole("head_dim", head_dim, 1)
    if heads % kv_heads:
        fitting = [str(count) for count in range(1, heads + 1) if heads % count == 0] if heads <= MOST_LISTED else []
        way_out = f"give one of {', '.join(fitting)}" if fitting else "give a divisor of heads"
        raise ArgumentError(
            f"kv_heads is {kv_heads}, by which {count_of(heads, 'query heads')} cannot be divided into equal groups; "
            f"{way_out}"
        )
    if head_dim is None and dim % heads:
        raise ArgumentError(
            f"dim {dim} does not divide into {count_of(heads, 'heads')}; give head_dim, or another dim or heads"
        )
    return dim, heads, kv_heads, dim // heads if head_dim is None else head_dim, context_dim


def refuse_more_inputs() -> None:
    """Raise a KeywordError: the layer was called with a query, a key and a value, as PyTorch's is."""
    raise KeywordError(
        "an attention layer takes x and a context: layer(x) in place of layer(x, x, x), and layer(x, context) in "
        "place of layer(x, context, context)"
    )


def check_kind(kind: str | None) -> None:
    """Raise an ArgumentError unless `kind` is a string or None."""
    if kind is not None and not isinstance(kind, str):
        raise ArgumentError(f"kind is {shown(kind)}; give the name of a cache, such as 'dynamic' or 'static'")


def check_cache(cache: object, layer: object) -> None:
    """Raise an ArgumentError unless `cache` is None, or a Cache or RecurrentState to which this layer may write."""
    if cache is None:
        return
    if not isinstance(cache, Cache | RecurrentState):
        raise ArgumentError(f"cache is {shown(cache)}; make one with new_cache(batch=...)")
    cache.refuse_other(layer)


def check_vectors(name: str, vectors: torch.Tensor, weight: object) -> None:
    """Raise a ShapeError unless the vectors are dense, floating-point, and of the weight's device and dtype."""
    if not isinstance(vectors, torch.Tensor) or not vectors.dtype.is_floating_point:
        raise ShapeError(f"{name} is {shown(vectors)}; this layer needs a tensor of floating-point numbers")
    refuse_layout(name, vectors)
    if not isinstance(weight, torch.Tensor) or type(weight) not in (torch.Tensor, torch.nn.Parameter):
        return  # sharded or quantised: it converts its inputs
    if vectors.device != weight.device:
        raise ShapeError(f"{name} is on {vectors.device} and this layer on {weight.device}; move one of them")
    if vectors.dtype != weight.dtype and not is_casting(vectors.device.type):
        raise ShapeError(f"{name} has dtype {vectors.dtype} and this layer {weight.dtype}; convert one of them")


def refuse_unrelated(pattern: Pattern, q_start: int | torch.Tensor | None, turned: bool) -> None:
    """Refuse a pattern or Rotary that compares positions with those of a context, unless q_start is given."""
    if q_start is not None:
        return
    if pattern.compares_positions:
        raise UnsupportedError(
            f"pattern {pattern} compares positions, and x and its context have no common origin; give q_start, "
            f"the position of x's first vector among the context's"
        )
    if turned:
        raise UnsupportedError(
            "Rotary compares positions, and x and its context have no common origin; use a layer without positions for "
            "cross-attention, or give q_start"
        )


def refuse_rows(pattern: Pattern) -> None:
    """Refuse a pattern that cannot be continued in a cache: an explicit mask, or one that depends on the length."""
    if pattern.of_one_call:
        raise UnsupportedError(
            f"pattern {pattern} holds a mask for the rows of one call, and with a cache a text takes several calls; "
            f"use a pattern of positions (Where, KeySpan, ...)"
        )
    if pattern.by_length:
        raise UnsupportedError(
            f"pattern {pattern} depends on the number of keys, which grows with a cache, so continuing a text would "
            f"differ from computing it at once; use RandomBlocks(..., past=True)"
        )


def refuse_moved(q_start: int | torch.Tensor, length: int) -> None:
    """Refuse a q_start other than the length of the cache."""
    if isinstance(q_start, torch.Tensor) or q_start != length:
        raise UnsupportedError(
            f"q_start={q_start} with a cache of {count_of(length, 'entries')}: new entries follow "
            f"the cached ones, so leave "
            f"q_start out"
        )


def refuse_sinks(mechanism: Mechanism, sinks: bool) -> None:
    """Refuse sinks for a mechanism whose weights are no softmax over the keys."""
    if sinks and "sink" not in mechanism.options:
        raise UnsupportedError(
            f"{mechanism} has no sinks, since its weights are no softmax over the keys; leave out sinks=True, or use "
            f"softmax"
        )


def refuse_state(mechanism: Mechanism, capacity: int | None, dtype: object) -> None:
    """Refuse a recurrent state of a mechanism that has none, and a capacity or dtype for one."""
    if not mechanism.has_state:
        raise UnsupportedError(f"{mechanism} has no recurrent state; use another kind of cache")
    if capacity is not None or dtype is not None:
        raise ArgumentError("a state has a fixed size and the dtype of the weights; leave out capacity and dtype")


def refuse_both(cache: object, context: object) -> None:
    """Refuse a cache together with a context."""
    if cache is not None and context is not None:
        raise UnsupportedError(
            "a cache holds x's own keys and a context brings its own; give one of them (project_context projects a "
            "context once)"
        )
