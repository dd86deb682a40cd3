"""What is measured of a model before and after: the bytes that it keeps, and whether two say the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from regard.caches import Cache
from regard.layers import ProjectedContext
from regard.models import LanguageModel, TextEncoder, TranslationTransformer

Model = LanguageModel | TextEncoder | TranslationTransformer
TOLERANCE = 1e-6  # of a conversion beside its oracle, in float64, of an output of size 1


@torch.no_grad()
def difference(model: Model, other: Model) -> float:
    """The largest difference between what two models say of the same ids, in float64, against outputs of size 1."""
    generator = torch.Generator().manual_seed(0)
    length = min(11, model.config.max_length)
    ids = torch.randint(1, model.config.vocab_size, (2, 3, length), generator=generator)
    inputs = tuple(ids) if isinstance(model, TranslationTransformer) else (ids[0],)
    said, expected = (deepcopy(each).double().eval()(*inputs) for each in (model, other))
    return float((said - expected).abs().max() / expected.abs().max().clamp(min=1))


@torch.no_grad()
def kept_of_one(model: Model) -> dict[str, int]:
    """Bytes that one id takes in the model's own caches, counted on their tensors: by what is kept.

    A "token"; of a translator a "source token" and a "target token"; the "state" of mechanisms that keep sums. An
    encoder keeps nothing.
    """
    if isinstance(model, TextEncoder):
        return {}
    one = torch.ones(1, 1, dtype=torch.int64)
    state: Any = model.start(one)
    if isinstance(model, TranslationTransformer):
        model.step(one[0], state)
        return {"source token": _bytes(state.contexts), "target token": _bytes(state.caches)}
    caches = [cache for texts in state.groups for cache in texts.caches.each]
    growing = [cache for cache in caches if isinstance(cache, Cache)]
    found = {"token": _bytes(growing), "state": sum(cache.nbytes for cache in caches if cache not in growing)}
    return {name: count for name, count in found.items() if count}


def _bytes(parts: list[Cache] | list[ProjectedContext]) -> int:
    """Of the keys and values that are held, room for more left out."""
    held = [x for part in parts for x in (part.keys, part.values)]
    return sum(x.numel() * x.element_size() for x in held if isinstance(x, torch.Tensor))  # all are: one id, no int8
