"""Documents of different lengths, packed into one row and never padded: jagged nested tensors, and packed tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.arguments import count_of, in_memory, kind_of, shown
from regard.bias import Bias, Forgetting, log_sums
from regard.core.call import Call
from regard.core.problem import checked_mechanism
from regard.core.tensors import Stored, check_tensor, refuse_layout
from regard.errors import ShapeError, UnsupportedError
from regard.mechanisms import Mechanism
from regard.patterns import Pattern, SameDocument, as_pattern
from regard.patterns.documents import PerDocument

_LAYOUT = "(batch, heads, ragged length, size) and layout torch.jagged"


def is_nested(*tensors: Any) -> bool:
    for x in tensors:
        if getattr(x, "is_nested", False):
            return True
    return False


@dataclass(frozen=True)
class Documents:
    """Where each document starts in packed queries and in packed keys, and where the last ends: (documents + 1,)."""

    q_ends: torch.Tensor
    k_ends: torch.Tensor

    @property
    def alike(self) -> bool:
        return self.q_ends is self.k_ends or torch.equal(self.q_ends.to(self.k_ends), self.k_ends)

    def forgetting(self, log_forget: torch.Tensor) -> Forgetting:
        """The bias of the log forget gates of packed documents, whose sums count from the start of each."""
        sums = log_sums(log_forget)
        return Forgetting.of_sums(sums - sums[..., self.q_ends.to(torch.int64)[self.ids - 1]], 0.0)

    @property
    def ids(self) -> torch.Tensor:
        """For each packed query the number of its document, counted from 1, (all positions,)."""
        positions = torch.arange(int(self.q_ends[-1]), device=self.q_ends.device)
        return torch.bucketize(positions, self.q_ends.to(torch.int64), right=True)

    def pattern(
        self,
        inner: Pattern | str | None,
        mechanism: Mechanism | str | None,
        bias: torch.Tensor | Bias | None,
    ) -> Pattern:
        """The pattern of one packed batch row in which each document attends to its own keys, with this bias."""
        if isinstance(bias, torch.Tensor):
            raise UnsupportedError(
                "a bias tensor has a number for each pair of one rectangle, and these are documents of different "
                "lengths; give a bias by distance (regard.bias), or make one call for each document"
            )
        if isinstance(bias, Bias) and not self.alike:
            raise UnsupportedError(
                "a bias by distance is not computed for documents whose lengths differ between queries and keys; make "
                "one call for each document"
            )
        pattern = as_pattern(inner).canonical()
        length = int(self.q_ends[-1])
        if (
            checked_mechanism(mechanism).is_softmax
            or not self.alike
            or pattern.period != 1
            or not length
        ):
            return PerDocument(pattern, tuple(self.q_ends.tolist()), tuple(self.k_ends.tolist()))
        return pattern & SameDocument(self.ids)  # linear mechanisms take documents only by ids


def packed_vectors(
    x: Any, context: Any = None, **others: Any
) -> tuple[torch.Tensor, torch.Tensor | None, Documents]:
    """The jagged inputs (batch, ragged length, dim) of a layer as packed ones (1, all positions, dim).

    `others` are the options of the layer that documents have no place for: None, or refused.
    """
    given = [name for name, one in others.items() if one is not None]
    if given:
        raise UnsupportedError(
            f"{' and '.join(given)} beside nested tensors: a packed batch row has no place for them; call the layer "
            f"for each document, or pad the documents and give KeySpan"
        )
    both = {"x": x} if context is None else {"x": x, "context": context}
    for name, one in both.items():
        if not is_nested(one):
            raise ShapeError(
                f"{name} is {shown(one)} beside a nested tensor; give both as nested tensors"
            )
        if one.layout != torch.jagged:
            refuse_layout(name, one)
        if (
            one.dim() != 3
            or not isinstance(one.shape[1], torch.SymInt)
            or one.lengths() is not None
        ):
            raise ShapeError(
                f"{name} is a nested tensor {tuple(one.shape)}; it needs (batch, ragged length, dim)"
            )
    if context is None:
        return x.values()[None], None, Documents(_offsets(x), _offsets(x))
    if x.shape[0] != context.shape[0]:
        raise ShapeError(
            f"x holds {count_of(x.shape[0], 'documents')} and its context {context.shape[0]}; document d of x attends "
            f"to document d"
        )
    return x.values()[None], context.values()[None], Documents(_offsets(x), _offsets(context))


def jagged(packed: torch.Tensor, ends: torch.Tensor, axis: int) -> torch.Tensor:
    """A packed batch row (1, ..., all positions, ...) as documents whose ragged axis is this one."""
    return torch.nested.nested_tensor_from_jagged(packed[0], offsets=ends, jagged_dim=axis)


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
    documents = Documents(_offsets(q), _offsets(k))
    packed = call._replace(q=q.values()[None], k=k.values()[None], v=v.values()[None])
    return _by_document(packed, documents), partial(jagged, ends=documents.q_ends, axis=2)


def varlen_call(call: Call, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None) -> Call:
    """A call of packed tensors (positions, heads, size) as one of dense tensors with one batch row."""
    q_ends = _ends_in_memory("cu_seqlens_q", cu_seqlens_q)
    k_ends = q_ends if cu_seqlens_k is None else _ends_in_memory("cu_seqlens_k", cu_seqlens_k)
    for name, x, ends in (("q", call.q, q_ends), ("k", call.k, k_ends), ("v", call.v, k_ends)):
        check_tensor(name, x)
        if not isinstance(x, torch.Tensor) or x.dim() != 3:
            raise ShapeError(
                f"{name} is {shown(x)}; attention_varlen takes packed tensors (positions, heads, size)"
            )
        _check_ends("cu_seqlens_q" if name == "q" else "cu_seqlens_k", name, ends, x.shape[0])
    if len(q_ends) != len(k_ends):
        raise ShapeError(
            f"cu_seqlens_q has {count_of(len(q_ends) - 1, 'documents')} and cu_seqlens_k {len(k_ends) - 1}; document "
            f"d of q attends to document d"
        )

    packed = call._replace(**{name: getattr(call, name).transpose(0, 1)[None] for name in "qkv"})
    return _by_document(packed, Documents(q_ends, k_ends))


def _ends_in_memory(name: str, ends: Any) -> Any:
    return in_memory(name, ends) if isinstance(ends, torch.Tensor) else ends


def _check_ends(name: str, of: str, ends: Any, length: int) -> None:
    is_list = isinstance(ends, torch.Tensor) and ends.dim() == 1
    if not is_list or ends.dtype not in (torch.int32, torch.int64) or not len(ends):
        raise ShapeError(
            f"{name} is {shown(ends)}; it needs int32 or int64 (documents + 1,): the first packed position of each "
            f"document, and the end of the last"
        )
    listed = ends.tolist()
    if listed[0] or listed[-1] != length or listed != sorted(listed):
        raise ShapeError(
            f"{name} goes from {listed[0]} to {listed[-1]}; it begins at 0, never falls, and ends at {length}, the "
            f"positions of {of}"
        )


def _by_document(call: Call, documents: Documents) -> Call:
    """A call of one packed batch row in which each document attends to its own keys."""
    _refuse_options(call)
    return call._replace(
        pattern=documents.pattern(call.pattern, call.mechanism, call.bias), q_start=0
    )


def _offsets(x: torch.Tensor) -> torch.Tensor:
    """The first packed position of each document, and the end of the last, (documents + 1,)."""
    return x.offsets()  # ty: ignore[missing-attribute]


def _check(name: str, x: torch.Tensor | Stored) -> None:
    if not isinstance(x, torch.Tensor):
        raise ShapeError(
            f"{name} is {kind_of(x)} beside nested tensors; q, k and v need to be nested alike"
        )
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


def _refuse_options(call: Call) -> None:
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
