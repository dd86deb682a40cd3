"""What a model keeps while it writes: the caches of its layers and the sources it reads."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol, TypeVar

import torch

from regard.arguments import each, of_kind
from regard.layers import LatentAttention, MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState
from regard.patterns import KeySpan
from regard.reprs import Described


class State(Protocol):
    """The state of texts that a model is writing, one per batch row. The caller owns it; each step advances it."""

    @property
    def length(self) -> int:
        """Number of ids read so far, of the longest text."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def reorder(self, index: torch.Tensor) -> None:
        """Continue batch row i from batch row `index[i]`; index: integers (new batch,)."""
        ...


StateT = TypeVar("StateT", bound=State)


class Writer(Protocol[StateT]):
    """A model that writes texts id by id."""

    def start(self, texts: torch.Tensor, /) -> StateT:
        """The state for continuing or translating texts (batch, length), padded with PAD."""
        ...

    def step(self, ids: torch.Tensor, state: StateT, /) -> torch.Tensor:
        """Append `ids` (batch,) to the texts of the state, and return logits (batch, vocab_size) of the next ids."""
        ...


class LayerCaches(Described):
    """One cache for each attention layer of a model. If one cache refuses a change, none is changed.

    >>> layers = [MultiHeadAttention(dim=8, heads=2, pattern="causal") for _ in range(3)]
    >>> caches = LayerCaches(layer.new_cache(batch=1) for layer in layers)
    >>> with torch.no_grad():
    ...     outputs = [layer(torch.zeros(1, 5, 8), cache=cache) for layer, cache in zip(layers, caches.each)]
    >>> caches.length
    5
    """

    def __init__(self, caches: Iterable[Cache | RecurrentState]) -> None:
        self.each = list(each("caches", caches, "caches, one for each attention layer"))
        for cache in self.each:
            of_kind("caches", cache, (Cache, RecurrentState), "caches, one for each attention layer")

    @property
    def length(self) -> int:
        """Number of positions so far, the same in every layer."""
        return self.each[0].length

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.each)

    def copy(self) -> LayerCaches:
        """Independent caches at the same position."""
        return LayerCaches(copy.copy(cache) for cache in self.each)  # entries of a cache are never overwritten

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`; index: integers (new batch,)."""
        moved = self.copy()
        for cache in moved.each:
            cache.reorder(index)
        self.each = moved.each

    def crop(self, length: int) -> None:
        """Keep the first `length` positions and drop the rest.

        Raises:
            ArgumentError, UnsupportedError: a layer's cache no longer holds these positions.
        """
        moved = self.copy()
        for cache in moved.each:
            cache.crop(length)
        self.each = moved.each


def frugal_kind(layer: MultiHeadAttention | LatentAttention) -> str:
    """The kind of cache that continues this layer exactly in the least memory.

    "state" if its mechanism has one, "ring" if its pattern has a limited reach, else "dynamic".

    >>> frugal_kind(MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)"))
    'ring'
    """
    if layer.mechanism.declared.has_state:
        return "state"
    return "dynamic" if layer.pattern.reach().back is None else "ring"


class Sources:
    """The projected sources of each decoder layer, where neighbouring batch rows may share one source.

    The hypotheses of a beam translate the same source, so its keys and values are stored once, and the hypotheses are
    its queries.

    Args:
        contexts: one for each layer, (texts, ...).
        live: the positions that are not padding; None for all.
        shared: whether batch rows may share a text; False if the pattern depends on the position of the query.
    """

    def __init__(self, contexts: list[ProjectedContext], live: KeySpan | None, shared: bool) -> None:
        self.contexts, self.mask, self.shared = contexts, None, shared
        self.readers = 1  # number of neighbouring batch rows that read each text
        if live is not None:
            hidden = ~live.allows(*_places(contexts[0]))[:, 0, 0]  # (texts, source_length)
            self.contexts = [context.without(hidden) for context in contexts]
            scores = torch.zeros_like(hidden, dtype=contexts[0].keys.dtype).masked_fill(hidden, -math.inf)
            self.mask = scores[:, None, None]  # (texts, 1, 1, source_length)

    @property
    def rows(self) -> int:
        """Number of batch rows."""
        return self.readers * len(self.contexts[0].keys)

    @property
    def nbytes(self) -> int:
        return sum(context.nbytes for context in self.contexts)

    def reorder(self, index: torch.Tensor) -> None:
        """Let batch row i read the source of batch row `index[i]`; index: integers (new batch,)."""
        read = [row // self.readers for row in index.tolist()]  # the text of each batch row
        runs = [(text, len(list(rows))) for text, rows in groupby(read)]
        lengths = {length for _, length in runs}
        if self.shared and len(lengths) == 1:
            (self.readers,), read = lengths, [text for text, _ in runs]
        else:
            self.readers = 1
        if read == list(range(len(self.contexts[0].keys))):
            return  # the same texts in the same order
        texts = torch.tensor(read, dtype=torch.int64, device=self.contexts[0].keys.device)
        self.contexts = [context.reorder(texts) for context in self.contexts]
        self.mask = None if self.mask is None else self.mask[texts]


def _places(context: ProjectedContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of one query and of all keys of a context."""
    places = torch.arange(context.length, device=context.keys.device)
    return places[:1, None], places[None]  # (1, 1), (1, source_length)
