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
from regard.patterns import Full, Pattern, SameDocument, as_pattern
from regard.patterns.documents import (
    PackedDocuments,
    PerDocument,
    check_edges,
    document_numbers,
)

NO_BIAS_TENSOR = (
    "a bias tensor has a number for each pair of one rectangle, and these are documents of different lengths; give a "
    "bias by distance (regard.bias), or make one call for each document"
)
_LAYOUT = "(batch, heads, ragged length, size) and layout torch.jagged"


def is_nested(*tensors: Any) -> bool:
    for x in tensors:
        if getattr(x, "is_nested", False):
            return True
    return False


@dataclass(frozen=True)
class DocumentEnds:
    """Where each document starts in packed queries and in packed keys, and where the last ends: (documents + 1,)."""

    q_ends: torch.Tensor
    k_ends: torch.Tensor

    @property
    def alike(self) -> bool:
        return self.q_ends is self.k_ends or torch.equal(self.q_ends.to(self.k_ends), self.k_ends)

    def forgetting(self, log_forget: torch.Tensor) -> Forgetting:
        """The bias of the log forget gates of packed documents, whose sums count from the start of each."""
        sums = log_sums(log_forget)
        ends_before = self.q_ends.to(torch.int64)[self.ids - 1].to(sums.device)
        return Forgetting.of_sums(sums - sums[..., ends_before], 0.0, log_forget.device)

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
            raise UnsupportedError(NO_BIAS_TENSOR)
        if isinstance(bias, Bias) and not self.alike:
            raise UnsupportedError(
                "a bias by distance is not computed for documents whose lengths differ between queries and keys; make "
                "one call for each document"
            )
        pattern = as_pattern(inner).canonical()
        takes_only_ids = not checked_mechanism(mechanism).is_softmax
        if takes_only_ids and self.alike and pattern.period == 1 and int(self.q_ends[-1]):
            return pattern & SameDocument(self.ids)
        return PerDocument(pattern, tuple(self.q_ends.tolist()), tuple(self.k_ends.tolist()))


def packed_vectors(
    x: Any, context: Any = None, **others: Any
) -> tuple[torch.Tensor, torch.Tensor | None, DocumentEnds]:
    """The jagged inputs (batch, ragged length, dim) of a layer as packed ones (1, all positions, dim).

    `others` are the options of the layer that documents have no place for: None, or refused.
    """
    options = [name for name, option in others.items() if option is not None]
    if options:
        raise UnsupportedError(
            f"{' and '.join(options)} beside nested tensors: a packed batch row has no place for them; call the layer "
            f"for each document, or pad the documents and give KeySpan"
        )
    _check_vectors("x", x)
    if context is None:
        return x.values()[None], None, DocumentEnds(_offsets(x), _offsets(x))
    _check_vectors("context", context)
    if x.shape[0] != context.shape[0]:
        raise ShapeError(
            f"x holds {count_of(x.shape[0], 'documents')} and its context {context.shape[0]}; document d of x attends "
            f"to document d"
        )
    return x.values()[None], context.values()[None], DocumentEnds(_offsets(x), _offsets(context))


def _check_vectors(name: str, x: Any) -> None:
    """Raise a ShapeError unless an input of a layer is jagged, (batch, ragged length, dim)."""
    if not is_nested(x):
        raise ShapeError(
            f"{name} is {shown(x)} beside a nested tensor; give both as nested tensors"
        )
    if x.layout != torch.jagged:
        refuse_layout(name, x)
    is_ragged = x.dim() == 3 and isinstance(x.shape[1], torch.SymInt)
    if not is_ragged or x.lengths() is not None:
        raise ShapeError(
            f"{name} is a nested tensor {tuple(x.shape)}; it needs (batch, ragged length, dim)"
        )


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
    q: Any = call.q
    k: Any = call.k
    v: Any = call.v
    tensors = {"q": q, "k": k, "v": v}
    for name, x in tensors.items():
        if is_nested(x) and x.layout != torch.jagged:
            refuse_layout(name, x)
    for name, x in tensors.items():
        _check_heads(name, x)
    if not torch.equal(_offsets(k), _offsets(v)):
        raise ShapeError("k and v are nested tensors of different lengths; each key needs a value")
    if len(_offsets(q)) != len(_offsets(k)):
        raise ShapeError(
            f"q holds {count_of(q.shape[0], 'documents')} and k {k.shape[0]}; document d of q attends to document d"
        )
    documents = DocumentEnds(_offsets(q), _offsets(k))
    packed = call._replace(q=q.values()[None], k=k.values()[None], v=v.values()[None])
    return _by_document(packed, documents), partial(jagged, ends=documents.q_ends, axis=2)


def varlen_call(
    call: Call, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None, axes: str = "nhd"
) -> Call:
    """A call of packed tensors as one of dense tensors with one batch row.

    axes: "nhd" for tensors (positions, heads, size), "hnd" for (heads, positions, size).
    """
    q_ends = _ends_in_memory("cu_seqlens_q", cu_seqlens_q)
    k_ends = q_ends
    if cu_seqlens_k is not None:
        k_ends = _ends_in_memory("cu_seqlens_k", cu_seqlens_k)
    _check_call(call, q_ends, k_ends, axes)
    ends_of = {
        "q": ("cu_seqlens_q", q_ends),
        "k": ("cu_seqlens_k", k_ends),
        "v": ("cu_seqlens_k", k_ends),
    }
    for name, (ends_name, ends) in ends_of.items():
        length = getattr(call, name).shape[axes.index("n")]
        check_edges(ends_name, ends.tolist(), name, length)
    return _by_document(_in_one_row(call, axes), DocumentEnds(q_ends, k_ends))


def checked_ends(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor
) -> torch.Tensor:
    """The ends of the documents of packed tensors (positions, heads, size), int64 (documents + 1,)."""
    ends = _ends_in_memory("cu_seqlens", cu_seqlens)
    for name, x in {"q": q, "k": k, "v": v}.items():
        _check_packed(name, x, "nhd", "cu_seqlens", ends)
        check_edges("cu_seqlens", ends.tolist(), name, x.shape[0])
    return ends.to(torch.int64)


def traced_varlen_call(
    call: Call, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None, axes: str = "nhd"
) -> Call:
    """The same in a graph, where the numbers of documents and of their positions are not known.

    Ends that are wrong are refused when the graph runs.
    """
    ends_of_keys = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    _check_call(call, cu_seqlens_q, ends_of_keys, axes)
    _refuse_options(call)
    if isinstance(call.bias, torch.Tensor):
        raise UnsupportedError(NO_BIAS_TENSOR)
    if isinstance(call.bias, Bias) and cu_seqlens_k is not None:
        raise UnsupportedError(
            "a bias by distance beside cu_seqlens_k is not compiled, since it needs documents of equal lengths and "
            "the graph does not know these; leave cu_seqlens_k out where they are those of cu_seqlens_q"
        )
    q_ends = cu_seqlens_q.to(torch.int64)
    k_ends = q_ends if cu_seqlens_k is None else cu_seqlens_k.to(torch.int64)
    inner = Full() if call.pattern is None else call.pattern
    ids = None
    if cu_seqlens_k is None and not _is_softmax(call.mechanism):
        q: Any = call.q
        ids = document_numbers(q_ends, torch.arange(q.shape[axes.index("n")], device=q_ends.device))
    pattern = PackedDocuments(inner, q_ends, k_ends, ids)
    return _in_one_row(call, axes)._replace(pattern=pattern, q_start=0)


def _is_softmax(mechanism: Mechanism | str | None) -> bool:
    """Whether a mechanism is softmax, also by its text, which a graph cannot read."""
    if isinstance(mechanism, str):
        return mechanism.startswith("softmax")
    return checked_mechanism(mechanism).is_softmax


def _check_call(call: Call, q_ends: torch.Tensor, k_ends: torch.Tensor, axes: str) -> None:
    """Raise a ShapeError unless tensors are packed and have as many documents as each other."""
    _check_packed("q", call.q, axes, "cu_seqlens_q", q_ends)
    _check_packed("k", call.k, axes, "cu_seqlens_k", k_ends)
    _check_packed("v", call.v, axes, "cu_seqlens_k", k_ends)
    if q_ends is k_ends:
        return
    documents = q_ends.shape[0] - 1  # len() would fix the number in an exported program
    if documents != k_ends.shape[0] - 1:
        raise ShapeError(
            f"cu_seqlens_q has {count_of(documents, 'documents')} and cu_seqlens_k {len(k_ends) - 1}; document d of q "
            f"attends to document d"
        )


def _in_one_row(call: Call, axes: str) -> Call:
    """Packed tensors with these axes as (1, heads, positions, size)."""
    q: Any = call.q
    k: Any = call.k
    v: Any = call.v
    if axes == "nhd":
        q = q.transpose(0, 1)
        k = k.transpose(0, 1)
        v = v.transpose(0, 1)
    return call._replace(q=q[None], k=k[None], v=v[None])


def _ends_in_memory(name: str, ends: Any) -> Any:
    return in_memory(name, ends) if isinstance(ends, torch.Tensor) else ends


def _check_packed(name: str, x: Any, axes: str, ends_name: str, ends: Any) -> None:
    """Raise a ShapeError unless a tensor is packed, with these axes, and ends are a list of positions."""
    check_tensor(name, x)
    if not isinstance(x, torch.Tensor) or x.dim() != 3:
        takes = "positions, heads" if axes == "nhd" else "heads, positions"
        raise ShapeError(
            f"{name} is {shown(x)}; attention_varlen takes packed tensors ({takes}, size)"
        )
    is_list = isinstance(ends, torch.Tensor) and ends.dim() == 1
    if not is_list or ends.dtype not in (torch.int32, torch.int64) or not ends.shape[0]:
        raise ShapeError(
            f"{ends_name} is {shown(ends)}; it needs int32 or int64 (documents + 1,): the first packed position of "
            f"each document, and the end of the last"
        )


def _by_document(call: Call, documents: DocumentEnds) -> Call:
    """A call of one packed batch row in which each document attends to its own keys."""
    _refuse_options(call)
    pattern = documents.pattern(call.pattern, call.mechanism, call.bias)
    return call._replace(pattern=pattern, q_start=0)


def _offsets(x: torch.Tensor) -> torch.Tensor:
    """The first packed position of each document, and the end of the last, (documents + 1,)."""
    return x.offsets()  # ty: ignore[missing-attribute]


def _check_heads(name: str, x: torch.Tensor | Stored) -> None:
    """Raise a ShapeError unless q, k or v is jagged, (batch, heads, ragged length, size)."""
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
