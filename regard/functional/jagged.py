"""Documents of different lengths, packed into one row and never padded: jagged nested tensors, and packed tensors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from regard.arguments import count_of, kind_of, shown
from regard.bias import Bias
from regard.core.call import Call
from regard.core.problem import checked_mechanism
from regard.core.tensors import Stored, check_tensor, refuse_layout
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
    offsets = _offsets(q)
    packed = call._replace(q=q.values()[None], k=k.values()[None], v=v.values()[None])

    def unpacked(output: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(output[0], offsets=offsets, jagged_dim=2)

    return _by_document(packed, offsets, _offsets(k), alike), unpacked


def varlen_call(call: Call, cu_q: torch.Tensor, cu_k: torch.Tensor | None) -> Call:
    """A call of packed tensors (positions, heads, size) as one of dense tensors with one batch row."""
    cu_k = cu_q if cu_k is None else cu_k
    for name, x, ends in (("q", call.q, cu_q), ("k", call.k, cu_k), ("v", call.v, cu_k)):
        check_tensor(name, x)
        if not isinstance(x, torch.Tensor) or x.dim() != 3:
            raise ShapeError(f"{name} is {shown(x)}; attention_varlen takes packed tensors (positions, heads, size)")
        _check_ends("cu_q" if name == "q" else "cu_k", name, ends, x.shape[0])
    if len(cu_q) != len(cu_k):
        raise ShapeError(
            f"cu_q has {count_of(len(cu_q) - 1, 'documents')} and cu_k {len(cu_k) - 1}; document d of q attends to "
            f"document d"
        )
    alike = cu_q is cu_k or torch.equal(cu_q.to(cu_k), cu_k)
    _refuse_options(call, alike)
    packed = call._replace(**{name: getattr(call, name).transpose(0, 1)[None] for name in "qkv"})
    return _by_document(packed, cu_q, cu_k, alike)


def _check_ends(name: str, of: str, ends: Any, length: int) -> None:
    whole = isinstance(ends, torch.Tensor) and ends.dim() == 1 and ends.dtype in (torch.int32, torch.int64)
    if not whole or not len(ends):
        raise ShapeError(
            f"{name} is {shown(ends)}; it needs int32 or int64 (documents + 1,): the first packed position of each "
            f"document, and the end of the last"
        )
    listed = ends.tolist()
    if listed[0] or listed[-1] != length or any(one > other for one, other in pairwise(listed)):
        raise ShapeError(
            f"{name} goes from {listed[0]} to {listed[-1]}; it begins at 0, never falls, and ends at {length}, the "
            f"positions of {of}"
        )


def _by_document(call: Call, q_ends: torch.Tensor, k_ends: torch.Tensor, alike: bool) -> Call:
    """A call of one packed batch row in which each document attends to its own keys."""
    pattern, length = as_pattern(call.pattern).canonical(), call.q.shape[2]
    if not checked_mechanism(call.mechanism).is_softmax and alike and pattern.period == 1 and length:
        # linear mechanisms take documents only by ids
        positions = torch.arange(length, device=q_ends.device)
        pattern &= SameDocument(torch.bucketize(positions, q_ends.to(torch.int64), right=True))
    else:
        pattern = PerDocument(pattern, tuple(q_ends.tolist()), tuple(k_ends.tolist()))
    return call._replace(pattern=pattern, q_start=0)


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
            "a bias tensor has a number for each pair of one rectangle, and these q and k are documents of different "
            "lengths; give a bias by distance (regard.bias), or call attention for each document"
        )
    if isinstance(call.bias, Bias) and not alike:
        raise UnsupportedError(
            "a bias by distance is not computed for documents whose lengths differ between q and k; call attention for "
            "each document"
        )
    if isinstance(call.sink, torch.Tensor) and call.sink.dim() > 1 and call.sink.shape[0] > 1:
        raise UnsupportedError(
            "a sink for each batch row is not computed for documents, which are packed into one row; give one logit "
            "for each head, (heads,), or call attention for each document"
        )
    if call.q_start is not None:
        raise UnsupportedError(
            "q_start of documents has no meaning, since in each document the last query is at the last key; "
            "leave it out, or call attention for each document"
        )
