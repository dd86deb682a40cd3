"""What layers refuse beyond the one call: positions without a common origin, what belongs to one call with a cache."""

from __future__ import annotations

import torch

from regard.arguments import whole
from regard.autocast import is_casting
from regard.caches import Cache, RecurrentState
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.kinds import shown
from regard.patterns import Explicit, Pattern
from regard.patterns.compound import Compound
from regard.shapes import refuse_layout


def checked_sizes(
    dim: int, heads: int, kv_heads: int | None, head_dim: int | None, context_dim: int | None
) -> tuple[int, int, int, int, int]:
    """The sizes of a layer of heads, with those that were left out, or an ArgumentError."""
    dim, heads = whole("dim", dim), whole("heads", heads)
    kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads)
    context_dim = dim if context_dim is None else whole("context_dim", context_dim)
    head_dim = head_dim if head_dim is None else whole("head_dim", head_dim)
    if min(dim, heads, kv_heads, context_dim, 1 if head_dim is None else head_dim) < 1 or heads % kv_heads:
        raise ArgumentError(
            f"dim {dim}, heads {heads}, kv_heads {kv_heads}, head_dim {head_dim}, context_dim {context_dim}: all are 1 "
            f"or more, and heads is a multiple of kv_heads"
        )
    if head_dim is None and dim % heads:
        raise ArgumentError(f"dim {dim} does not divide into {heads} heads; give head_dim, or another dim or heads")
    return dim, heads, kv_heads, dim // heads if head_dim is None else head_dim, context_dim


def check_kind(kind: str | None) -> None:
    """Raise an ArgumentError unless this may be the name of a kind of cache."""
    if kind is not None and not isinstance(kind, str):
        raise ArgumentError(f"kind is {shown(kind)}; it is the name of a cache, such as 'dynamic' or 'static'")


def check_cache(cache: object) -> None:
    """Raise an ArgumentError unless this is a cache or a state, or None."""
    if cache is not None and not isinstance(cache, Cache | RecurrentState):
        raise ArgumentError(f"cache is {shown(cache)}; make one with new_cache(batch=...)")


def check_vectors(name: str, vectors: torch.Tensor, weight: object) -> None:
    """Raise a ShapeError unless these are dense floating-point vectors that the weight can be multiplied with."""
    if not isinstance(vectors, torch.Tensor) or not vectors.dtype.is_floating_point:
        raise ShapeError(f"{name} is {shown(vectors)}; this layer needs a tensor of floating-point numbers")
    refuse_layout(name, vectors)
    if not isinstance(weight, torch.Tensor) or type(weight) not in (torch.Tensor, torch.nn.Parameter):
        return  # sharded, or quantised: it converts by itself
    if vectors.device != weight.device:
        raise ShapeError(f"{name} is on {vectors.device} and this layer on {weight.device}; move one of them")
    if vectors.dtype != weight.dtype and not is_casting(vectors.device.type):
        raise ShapeError(f"{name} has dtype {vectors.dtype} and this layer {weight.dtype}; convert one of them")


def refuse_unrelated(pattern: Pattern, q_start: int | torch.Tensor | None, turned: bool) -> None:
    """With a context and without q_start, nothing may compare positions."""
    if q_start is not None:
        return
    if pattern.compares_positions:
        raise UnsupportedError(
            f"pattern {pattern} compares positions, and those of x and of a context have no common origin; give "
            f"q_start to say where x's first vector stands among the context's"
        )
    if turned:
        raise UnsupportedError(
            "Rotary compares positions, and those of x and of a context have no common origin; use a layer "
            "without positions for cross-attention, or give q_start"
        )


def refuse_rows(pattern: Pattern) -> None:
    """With a cache, no mask whose rows are those of one call, and nothing that another length changes."""
    if _holds_mask(pattern):
        raise UnsupportedError(
            f"pattern {pattern} holds a mask whose rows are those of one call, and a cache makes many calls of "
            f"one text; say it by positions (Where, KeySpan, ...)"
        )
    if pattern.by_length:
        raise UnsupportedError(
            f"pattern {pattern} depends on how many keys there are, and with a cache each call has more, so that a "
            f"continued text would differ from the whole at once; draw among the past, RandomBlocks(..., past=True)"
        )


def refuse_moved(q_start: int | torch.Tensor, length: int) -> None:
    """With a cache, x stands right behind what it holds."""
    if isinstance(q_start, torch.Tensor) or q_start != length:
        raise UnsupportedError(
            f"q_start={q_start} with a cache of {length} entries: what is appended stands right behind them, "
            f"so leave q_start out"
        )


def refuse_both(cache: object, context: object) -> None:
    """A cache or a context."""
    if cache is not None and context is not None:
        raise UnsupportedError(
            "a cache keeps x's own keys and a context brings its own; give one of them (project_context keeps a "
            "context's keys)"
        )


def _holds_mask(pattern: Pattern) -> bool:
    if isinstance(pattern, Compound):
        return any(_holds_mask(part) for part in pattern.made_of())
    return isinstance(pattern, Explicit)
