"""Masks of transformers while torch.compile traces a model: what a graph can know of them, as patterns.

A graph cannot look into the closures of a mask function. Which function it is follows from its code and from the other
arguments of the call, in the cases that models use: causal, full, windows on one or both sides, packed documents, each
with padding. The documents are read from the function along one diagonal. Every other mask stays the dense tensor that
PyTorch's own attention gets, and an `UnreadMaskWarning` says so.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import masking_utils as theirs

from regard.errors import UnsupportedError
from regard.patterns import Causal, CausalWindow, Diagonals, Full, KeyMask, Pattern, SameDocument

Function = Any
AND = getattr(theirs.and_masks(theirs.causal_mask_function), "__code__", None)


class UnreadMaskWarning(UserWarning):
    """A mask was not recognised, so the exact dense mask is used."""


class TracedMask:
    """A mask (batch, 1, q_len, k_len) in a graph that is being traced; it holds a pattern and no pairs.

    first_key: the position of the first key, which is above 0 where a cache dropped keys.
    """

    dtype, ndim = torch.bool, 4

    def __init__(
        self, pattern: Pattern, q_start: Any, shape: tuple[int, ...], device: torch.device, first_key: Any
    ) -> None:
        self.pattern, self.q_start, self.shape, self.device = pattern, q_start, shape, device
        self.first_key = first_key
        self.joined: list[tuple[Any, Pattern]] = []  # with each replaced pattern, see `Change`: layers share the mask

    def dim(self) -> int:
        """The number of axes."""
        return 4

    def size(self, axis: int | None = None) -> Any:
        """The sizes of the axes, or of one."""
        return self.shape if axis is None else self.shape[axis]

    def to(self, *given: Any, **options: Any) -> TracedMask:
        """The mask itself, which has its device and dtype."""
        return self

    def __getitem__(self, index: Any) -> TracedMask:
        """The mask of the first keys; other parts of it are not known."""
        last = index[-1] if isinstance(index, tuple) else index
        if not isinstance(last, slice) or last.start not in (None, 0) or last.step not in (None, 1):
            raise UnsupportedError("a mask is cut to its first keys in a compiled model, and in no other way")
        keys = self.shape[-1] if last.stop is None else min(last.stop, self.shape[-1])
        return TracedMask(self.pattern, self.q_start, (*self.shape[:-1], keys), self.device, self.first_key)


def traced_mask(given: dict[str, Any], others: dict[str, Any]) -> Any:
    """A `TracedMask`, or the dense tensor or None that PyTorch's own attention would get.

    Args:
        given: the arguments that transformers gives to every mask function, by name.
        others: those that only some of them use.
    """
    pattern = _pattern(given, others)
    if pattern is None:
        _say()
        return theirs.sdpa_mask(**given, **others)
    keys, offset = given["kv_length"], given["kv_offset"]
    if given["attention_mask"] is not None:
        live: Any = theirs.prepare_padding_mask(given["attention_mask"], keys, offset)
        pattern = pattern & KeyMask(live[:, offset : offset + keys].to(torch.bool))
    shape = (given["batch_size"], 1, given["q_length"], keys)
    start = given["q_offset"] - offset
    if isinstance(start, torch.Tensor):
        start = start.to(torch.int64).reshape(1).expand(shape[0])
    return TracedMask(pattern, start, shape, given["device"], offset)


def _pattern(given: dict[str, Any], others: dict[str, Any]) -> Pattern | None:
    """The pattern of a mask function without padding, or None where it is not certain."""
    function = given["mask_function"]
    if function is theirs.causal_mask_function:
        return Causal()
    if function is theirs.bidirectional_mask_function:
        return Full()
    if given["use_vmap"] or AND is None or function.__code__ is not AND:
        return None
    config, size = others.get("config"), others.get("local_size")
    window = getattr(config, "sliding_window", None)
    if size is not None and (size != window or getattr(config, "attention_chunk_size", None) is not None):
        return None
    if "allow_is_bidirectional_skip" in others:
        return None if size is None else Diagonals(size, size)
    local = Causal() if size is None else CausalWindow(size)
    start, square = given["q_offset"], given["q_length"] == given["kv_length"]
    if given["attention_mask"] is None and not isinstance(start, torch.Tensor) and start == 0 and square:
        return local & SameDocument(_documents(function, given))  # with positions that may be packed
    return None if size is None else local


def _documents(function: Function, given: dict[str, Any]) -> torch.Tensor:
    """The document of each position, (batch, length): a new one begins where a query may not look at the key before."""
    batch, length, device = given["batch_size"], given["q_length"], given["device"]
    rows, at = torch.arange(batch, device=device)[:, None], torch.arange(1, length, device=device)
    begins = ~function(rows, 0, at[None], at[None] - 1).expand(batch, length - 1)
    return torch.nn.functional.pad(begins.to(torch.int64).cumsum(-1), (1, 0))


def _say() -> None:
    warnings.warn(
        "torch.compile cannot see which mask a model uses here, so the exact dense mask is used, which stores every "
        "pair; outside of torch.compile explain(model, inputs) shows it",
        UnreadMaskWarning,
        stacklevel=2,
    )


_say._dynamo_marked_constant = True  # ty: ignore[missing-attribute]
