"""Jagged nested tensors as q, k and v: documents of different lengths, packed into one row and never padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.arguments import count_of, kind_of
from regard.bias import Bias
from regard.core.call import Call
from regard.core.problem import checked_mechanism
from regard.core.tensors import Stored, refuse_layout
from regard.errors import ShapeError, UnsupportedError
from regard.patterns import SameDocument, as_pattern
from regard.patterns.documents import PerDocument

_LAYOUT = "(batch, heads, ragged length, size) and layout torch.jagged"


def is_nested(*tensors: Any) -> bool:
    return any(getattr(x, "is_nested", False) for x in tensors)


def packed_call(call: Call) -> tuple[Call, Callable[[torch.Tensor], torch.Tensor]]:
    """A call of jagged tensors as a call of dense tensors with one batch row, in which the documents are packed.

    A document is a batch row. Each attends to its own keys, and patterns count positions from its start.

    Args:
        call: q, k and v are (batch, heads, ragged length, size); k and v have one length, which may differ from q's.

    Returns:
        A call of tensors (1, heads, all positions, size), and the function that makes an output jagged as q is.
    """
    tensors: tuple[Any, Any, Any] = call[:3]
    q, k, v = tensors
    named = [*zip("qkv", tensors, strict=True)]
    for name, tensor in named:
        if is_nested(tensor) and tensor.layout != torch.jagged:
            refuse_layout(name, tensor)
    for name, tensor in named:
        _check(name, tensor)
    if not torch.equal(_offsets(k), _offsets(v)):
        raise ShapeError("k and v are nested tensors of different lengths; each key needs a value")
    if len(_offsets(q)) != len(_offsets(k)):
        raise ShapeError(
            f"q holds {count_of(q.shape[0], 'documents')} and k {k.shape[0]}; document d of q attends to document d"
        )
    alike = torch.equal(_offsets(q), _offsets(k))
    _refuse_options(call, alike)
    pattern, offsets = as_pattern(call.pattern).canonical(), _offsets(q)
    positions = torch.arange(q.values().shape[1], device=q.device)
    if not checked_mechanism(call.mechanism).is_softmax and alike and pattern.period == 1 and len(positions):
        # linear mechanisms take documents only by ids
        pattern &= SameDocument(torch.bucketize(positions, offsets.to(torch.int64), right=True))
    else:
        pattern = PerDocument(pattern, tuple(offsets.tolist()), tuple(_offsets(k).tolist()))
    q, k, v = (x.values()[None] for x in tensors)

    def unpacked(output: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(output[0], offsets=offsets, jagged_dim=2)

    return call._replace(q=q, k=k, v=v, pattern=pattern, q_start=0), unpacked


def _offsets(x: torch.Tensor) -> torch.Tensor:
    """The first packed position of each document, and the end of the last, (documents + 1,)."""
    return x.offsets()  # ty: ignore[missing-attribute]


def _check(name: str, x: torch.Tensor | Stored) -> None:
    if not isinstance(x, torch.Tensor):
        raise ShapeError(f"{name} is {kind_of(x)} beside nested tensors; q, k and v need to be nested alike")
    if not x.is_nested:
        raise ShapeError(
            f"{name} is a dense tensor {tuple(x.shape)} beside nested ones; q, k and v need to be nested alike"
        )
    if x.dim() != 4 or not isinstance(x.shape[2], torch.SymInt):
        ragged = x.dim() == 4 and isinstance(x.shape[1], torch.SymInt)
        way = f": give {name}.transpose(1, 2)" if ragged else ""
        raise ShapeError(f"{name} is a nested tensor {tuple(x.shape)}; it needs {_LAYOUT}{way}")
    if x.lengths() is not None:  # ty: ignore[missing-attribute]
        raise ShapeError(
            f"{name} is a nested tensor with gaps between its documents; call .contiguous() before it is transposed"
        )


def _refuse_options(call: Call, alike: bool) -> None:
    if isinstance(call.bias, torch.Tensor):
        raise UnsupportedError(
            "a bias tensor has a number for each pair of one rectangle, and nested q and k are documents of different "
            "lengths; give a bias by distance (regard.bias), or call attention for each document"
        )
    if isinstance(call.bias, Bias) and not alike:
        raise UnsupportedError(
            "a bias by distance beside nested q and k of different lengths is not computed; call attention for each "
            "document"
        )
    if isinstance(call.sink, torch.Tensor) and call.sink.dim() > 1 and call.sink.shape[0] > 1:
        raise UnsupportedError(
            "a sink for each batch row beside nested tensors is not computed, since the documents are packed into one "
            "row; give one logit for each head, (heads,), or call attention for each document"
        )
    if call.q_start is not None:
        raise UnsupportedError(
            "q_start beside nested tensors has no meaning, since in each document the last query is at the last key; "
            "leave it out, or call attention for each document"
        )
