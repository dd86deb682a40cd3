"""From weights between ids to weights between words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.errors import ArgumentError, ShapeError
from regard.kinds import a_list, shown
from regard.shapes import check_tensor

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

    Raises:
        ShapeError: weights that are no tensor of floating-point numbers, or that do not fit the words.
        ArgumentError: words that are not told by spans.

    >>> halves = torch.full((2, 2), 0.5)
    >>> merge(halves, [("street", range(2))], [("street", range(2))])
    tensor([[1.]])
    """
    check_tensor("weights", weights)
    reading, read = (_membership(_spans(n, spans), weights.dtype) for n, spans in (("rows", rows), ("keys", keys)))
    fits = weights.dim() >= 2 and weights.shape[-2:] == (reading.shape[1], read.shape[1])
    if not fits or not weights.is_floating_point():
        raise ShapeError(
            f"weights are {tuple(weights.shape)} of {weights.dtype}; these words need floating-point numbers "
            f"(..., {reading.shape[1]}, {read.shape[1]})"
        )
    return (reading / reading.sum(1, keepdim=True)) @ weights @ read.mT


def _spans(name: str, spans: Sequence[Span]) -> list[Span]:
    needs = "(word, range of its ids) for each word, as Tokeniser.words gives them"
    found = a_list(name, spans, (tuple, list), needs)
    for span in found:
        if len(span) != 2 or not isinstance(span[1], range) or not span[1] or span[1].step != 1:
            raise ArgumentError(f"{name} holds {shown(span)}; it needs {needs}")
    ids = sorted(place for _, places in found for place in places)
    if ids != list(range(len(ids))):
        raise ArgumentError(f"{name} are words of the ids {shown(ids)}; each id, from 0, is in one word")
    return found


def _membership(spans: Sequence[Span], dtype: torch.dtype) -> torch.Tensor:
    """(words, ids), 1 where the id is part of the word."""
    member = torch.zeros(len(spans), sum(len(places) for _, places in spans), dtype=dtype)
    for word, (_, places) in enumerate(spans):
        member[word, places.start : places.stop] = 1
    return member
