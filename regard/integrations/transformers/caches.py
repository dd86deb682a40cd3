"""Caches of transformers: finding the one of a call, appending to it, and making one with layers of another kind."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from regard.arguments import count_of
from regard.errors import ShapeError

__all__ = ["append_to_cache", "cache_among", "cache_with", "check_batch"]


def cache_among(*values: Any) -> Any:
    """The cache among the values of a call or an output, which versions of transformers name differently."""
    return next((value for value in values if hasattr(value, "get_seq_length")), None)


def check_batch(held: torch.Tensor | None, new: torch.Tensor) -> None:
    """Raise a ShapeError unless new entries have the batch rows of those that a layer of a cache holds.

    A layer that writes entries in place asks this first: PyTorch would copy the entries of one text to all rows.
    """
    if held is None or not held.numel() or held.shape[0] == new.shape[0]:
        return
    raise ShapeError(
        f"this cache holds entries of {count_of(held.shape[0], 'texts')}, and this call has {new.shape[0]}; give the "
        f"cache of these texts, or none"
    )


def append_to_cache(
    cache: Any, k: torch.Tensor, v: torch.Tensor, layer: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of all tokens; those of this call alone without a cache."""
    return (k, v) if cache is None else cache.update(k, v, layer)


def cache_with(
    model: PreTrainedModel, numbers: Container[Any], count: int, make: Callable[[], DynamicLayer]
) -> DynamicCache | None:
    """An empty cache in which the plain layers with these numbers are of another kind; None if none of these is plain.

    Args:
        model: its config names the kinds of layers, or none.
        numbers: of layers.
        count: how many layers there are, where the config names no kinds.
        make: makes a layer of the other kind.
    """
    cache = DynamicCache(config=model.config)
    layers: list[Any] = cache.layers or [DynamicLayer() for _ in range(count)]
    plain = [index for index, layer in enumerate(layers) if type(layer) is DynamicLayer]
    changed = [index for index in plain if index in numbers]
    for index in changed:
        layers[index] = make()
    cache.layers = layers
    return cache if changed else None
