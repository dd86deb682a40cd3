"""Where a model stands in the texts that it writes: all that a search knows of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Protocol, TypeVar

import torch

from regard.caches import Cache, RecurrentState
from regard.kinds import each, of_kind
from regard.layers import MultiHeadAttention


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
