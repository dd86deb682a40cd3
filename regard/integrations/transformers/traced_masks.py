"""The masks of transformers as patterns inside a graph of torch.compile.

A graph cannot look into the closures of a mask function. Which function it is follows from its code and from the other
arguments of the call, in the cases that models use: causal, full, windows on one or both sides, packed documents, each
with padding. The documents are read from the function along one diagonal. Such a mask becomes a `TracedMask`; every
other one stays the dense tensor that eager attention gets, and an `UnreadMaskWarning` reports it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import masking_utils as theirs

from regard.errors import UnsupportedError
from regard.integrations.transformers.reading import Function, UnreadMaskWarning
from regard.patterns import Causal, CausalWindow, Full, KeyMask, Pattern, SameDocument
from regard.patterns.bands import Diagonals
from regard.patterns.documents import document_ids
from regard.reprs import Described

__all__ = ["TracedMask", "traced_mask"]

AND = getattr(theirs.and_masks(theirs.causal_mask_function), "__code__", None)


@dataclass(eq=False, repr=False)
class TracedMask(Described):
    """A mask (batch, 1, q_len, k_len) in a graph that is being traced; it holds a pattern and no pairs.

    first_key: the position of the first key, which is above 0 where a cache dropped keys. joined: the pattern with that
    of each `Substitute`, since layers share the mask.
    """

    pattern: Pattern
    q_start: Any
    shape: tuple[int, ...]
    device: Any
    first_key: Any
    dtype: torch.dtype
    joined: list[tuple[Any, Pattern]] = field(default_factory=list)
    ndim: ClassVar[int] = 4

    def dim(self) -> int:
        return 4

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def to(self, *args: Any, **options: Any) -> TracedMask:
        """The mask itself, which has its device and dtype."""
        return self

    def of_documents(self, ids: torch.Tensor) -> TracedMask:
        """The mask of the pairs within a document; ids: (batch, keys). Its pattern may say so already."""
        if document_ids(self.pattern):
            return self
        pattern = self.pattern & SameDocument(ids)
        return TracedMask(
            pattern, self.q_start, self.shape, self.device, self.first_key, self.dtype
        )

    def __getitem__(self, index: Any) -> TracedMask:
        """The mask of the first keys; other parts of it are not known."""
        parts = index if isinstance(index, tuple) else (index,)
        last = parts[-1]
        is_whole = all(part is ... or part == slice(None) for part in parts[:-1])
        begins = isinstance(last, slice) and last.start in (None, 0) and last.step in (None, 1)
        if not is_whole or not begins:
            raise UnsupportedError(
                "a mask is cut to its first keys in a compiled model, and in no other way"
            )
        keys = self.shape[-1] if last.stop is None else min(last.stop, self.shape[-1])
        shape = (*self.shape[:-1], keys)
        return TracedMask(
            self.pattern, self.q_start, shape, self.device, self.first_key, self.dtype
        )


def traced_mask(arguments: dict[str, Any], others: dict[str, Any]) -> Any:
    """A `TracedMask`, or the dense tensor of numbers that eager attention would get; `others` are not always given."""
    pattern = _traced_pattern(arguments, others)
    if pattern is None:
        _warn_of_dense()
        return theirs.eager_mask(**arguments, **others)
    keys = arguments["kv_length"]
    offset = arguments["kv_offset"]
    if arguments["attention_mask"] is not None:
        unpadded: Any = theirs.prepare_padding_mask(arguments["attention_mask"], keys, offset)
        pattern = pattern & KeyMask(unpadded[:, offset : offset + keys].to(torch.bool))
    shape = (arguments["batch_size"], 1, arguments["q_length"], keys)
    start = arguments["q_offset"] - offset
    if isinstance(start, torch.Tensor):
        start = start.to(torch.int64).reshape(1).expand(shape[0])
    return TracedMask(
        pattern, start, shape, arguments["device"], offset, others.get("dtype", torch.float32)
    )


def _traced_pattern(arguments: dict[str, Any], others: dict[str, Any]) -> Pattern | None:
    """The pattern of a mask function without padding, or None where it is not certain."""
    function = arguments["mask_function"]
    if function is theirs.causal_mask_function:
        return Causal()
    if function is theirs.bidirectional_mask_function:
        return Full()
    if arguments["use_vmap"] or AND is None or function.__code__ is not AND:
        return None
    config = others.get("config")
    size = others.get("local_size")
    if size is not None:
        has_chunks = getattr(config, "attention_chunk_size", None) is not None
        if has_chunks or size != getattr(config, "sliding_window", None):
            return None
    if "allow_is_bidirectional_skip" in others:
        return None if size is None else Diagonals(size, size)

    local = Causal() if size is None else CausalWindow(size)
    if _may_be_packed(arguments):
        return local & SameDocument(_traced_documents(function, arguments))
    return None if size is None else local


def _may_be_packed(arguments: dict[str, Any]) -> bool:
    """Whether the positions of a call may be those of several documents: no padding, no cache."""
    start = arguments["q_offset"]
    if arguments["attention_mask"] is not None or isinstance(start, torch.Tensor) or start != 0:
        return False
    return arguments["q_length"] == arguments["kv_length"]


def _traced_documents(function: Function, arguments: dict[str, Any]) -> torch.Tensor:
    """The document of each position, (batch, length): a new one begins where a query may not look at the key before."""
    batch = arguments["batch_size"]
    length = arguments["q_length"]
    device = arguments["device"]
    rows = torch.arange(batch, device=device)[:, None]
    queries = torch.arange(1, length, device=device)[None]
    begins = ~function(rows, 0, queries, queries - 1).expand(batch, length - 1)
    return torch.nn.functional.pad(begins.to(torch.int64).cumsum(-1), (1, 0))


def _warn_of_dense() -> None:
    warnings.warn(
        "torch.compile cannot see which mask a model uses here, so the exact dense mask is used, which stores every "
        "pair; outside of torch.compile explain(model, inputs) shows it",
        UnreadMaskWarning,
        stacklevel=2,
    )


_warn_of_dense._dynamo_marked_constant = True  # ty: ignore[missing-attribute]
