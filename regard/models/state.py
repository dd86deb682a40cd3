"""What a model keeps while it writes: the caches of its layers and the sources it reads."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import groupby
from typing import Protocol, TypeVar

import torch

from regard.kinds import each, of_kind
from regard.layers import MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState
from regard.patterns import KeySpan


class State(Protocol):
    """Texts that are continued side by side, one a row; it belongs to the caller and moves on with each step."""

    @property
    def length(self) -> int:
        """Ids taken in so far, of the longest text where they differ."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that are kept to go on."""
        ...

    def reorder(self, index: torch.Tensor) -> None:
        """Row i goes on from what row `index[i]` was; index: integers (new batch,)."""
        ...


StateT = TypeVar("StateT", bound=State)


class Writer(Protocol[StateT]):
    """A model that writes, id by id."""

    def start(self, texts: torch.Tensor, /) -> StateT:
        """The state from which texts (batch, length), padded with PAD, are continued or translated."""
        ...

    def step(self, ids: torch.Tensor, state: StateT, /) -> torch.Tensor:
        """Scores (batch, vocab_size) of the next id, after `ids` (batch,) have followed what the state holds."""
        ...


class LayerCaches:
    """A cache for each attention layer of a model, moved together; what one of them refuses changes none.

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
        """Positions so far, the same in every layer."""
        return self.each[0].length

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.each)

    def copy(self) -> LayerCaches:
        """Others at the same place: these stay as they are when those go on."""
        return LayerCaches(copy.copy(cache) for cache in self.each)  # what a cache holds is never written over

    def reorder(self, index: torch.Tensor) -> None:
        """Row i becomes what row `index[i]` was; index: integers (new batch,)."""
        moved = self.copy()
        for cache in moved.each:
            cache.reorder(index)
        self.each = moved.each

    def crop(self, length: int) -> None:
        """Keep the first `length` positions and forget the rest.

        Raises:
            ArgumentError, UnsupportedError: a layer's cache no longer knows how it was then.
        """
        moved = self.copy()
        for cache in moved.each:
            cache.crop(length)
        self.each = moved.each


def frugal_kind(layer: MultiHeadAttention) -> str:
    """The kind of cache that continues this layer exactly in the least memory.

    "state" where its mechanism has one, "ring" where its pattern looks back to an end, else "dynamic".

    >>> frugal_kind(MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)"))
    'ring'
    """
    if layer.mechanism.declared.has_state:
        return "state"
    return "dynamic" if layer.pattern.reach().back is None else "ring"


class Sources:
    """One context a layer, and in each one text for all the neighbouring rows that read it.

    The hypotheses of a beam translate the same text: its keys and values are held once, and the hypotheses look at
    them as queries side by side.

    Args:
        contexts: of each layer, (texts, ...).
        live: what of the texts is no padding; None for all.
        shared: may rows share a text? Not where a pattern asks at which place a query stands.
    """

    def __init__(self, contexts: list[ProjectedContext], live: KeySpan | None, shared: bool) -> None:
        self.contexts, self.mask, self.shared = contexts, None, shared
        self.readers = 1  # neighbouring rows that read each text
        if live is not None:
            hidden = ~live.allows(*_places(contexts[0]))[:, 0, 0]  # (texts, source_length)
            self.contexts = [context.without(hidden) for context in contexts]
            scores = torch.zeros_like(hidden, dtype=contexts[0].keys.dtype).masked_fill(hidden, -math.inf)
            self.mask = scores[:, None, None]  # (texts, 1, 1, source_length)

    @property
    def rows(self) -> int:
        """Of the batch."""
        return self.readers * len(self.contexts[0].keys)

    @property
    def nbytes(self) -> int:
        return sum(context.nbytes for context in self.contexts)

    def reorder(self, index: torch.Tensor) -> None:
        """Row i reads what row `index[i]` read; index: integers (new batch,)."""
        read = [row // self.readers for row in index.tolist()]  # the text of each row
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
    """A query, and every key of a context, by their positions."""
    places = torch.arange(context.length, device=context.keys.device)
    return places[:1, None], places[None]  # (1, 1), (1, source_length)
