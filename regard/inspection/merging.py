"""From weights between ids to weights between words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Span = tuple[str, range]  # a word and the places of its ids


def merge(weights: torch.Tensor, rows: Sequence[Span], keys: Sequence[Span]) -> torch.Tensor:
    """Sub-words as words: the sum over the ids that are read, the mean over the ids that read.

        merged[I, J] = mean over i in I of sum over j in J of weights[i, j]

    A row of weights that summed to 1 still does.

    Args:
        weights: (..., ids that read, ids that are read).
        rows, keys: words of the two sides, as `Tokeniser.words` tells them; each id is in one of them.

    Returns:
        (..., words that read, words that are read).

    >>> halves = torch.full((2, 2), 0.5)
    >>> merge(halves, [("street", range(2))], [("street", range(2))])
    tensor([[1.]])
    """
    reading, read = (_membership(spans, weights.dtype) for spans in (rows, keys))
    return (reading / reading.sum(1, keepdim=True)) @ weights @ read.mT


def _membership(spans: Sequence[Span], dtype: torch.dtype) -> torch.Tensor:
    """(words, ids), 1 where the id is part of the word."""
    member = torch.zeros(len(spans), sum(len(places) for _, places in spans), dtype=dtype)
    for word, (_, places) in enumerate(spans):
        member[word, places.start : places.stop] = 1
    return member
