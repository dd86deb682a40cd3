"""Prompts of unequal lengths, laid so that they end together and go on at one place."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Softmax
from regard.models.padding import align
from regard.text.vocabularies import PAD


def end_together(prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids (batch, longest) padded on the left, and the place (batch,) where each row begins; None if all begin at 0.

    Raises:
        ShapeError: prompts of another rank or dtype.
        ArgumentError: a prompt without any id.

    >>> end_together(torch.tensor([[5, 6, 7, 0], [0, 8, 9, 0]]))
    (tensor([[5, 6, 7],
            [0, 8, 9]]), tensor([0, 1]))
    """
    aligned = align(prompts)
    ids = aligned.ids
    lengths = torch.tensor([ids.shape[1]] * len(ids), device="cpu") if aligned.span is None else aligned.span.stop
    assert isinstance(lengths, torch.Tensor)
    if empty := (lengths == 0).nonzero().flatten().tolist():
        raise ArgumentError(f"prompt {empty[0]} of {len(ids)} holds no id; a prompt has one or more, such as BEGIN")
    if aligned.span is None:
        return ids, None
    longest = int(lengths.max())
    starts = longest - lengths
    if not bool(starts.any()):
        return ids[:, :longest], None
    places = torch.arange(longest, device=ids.device) - starts[:, None]  # (batch, longest)
    return ids.gather(1, places.clamp(min=0)).masked_fill(places < 0, PAD), starts


def may_begin_at(starts: torch.Tensor, layer: MultiHeadAttention) -> bool:
    """Does this layer see texts that begin at these places (batch,) as if they began at 0?

    A pattern may count from the beginning of a text. Rotated queries and keys have the same dot products wherever
    both stand, but not the same features or hashes.
    """
    if layer.positions is not None and not isinstance(layer.mechanism.declared, Softmax):
        return False
    period = layer.pattern.canonical().period
    return period is not None and not bool((starts % period).any())


def by_length(starts: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """The rows (texts,) that begin at each place, and the place; the longest texts come first.

    >>> by_length(torch.tensor([2, 0, 2]))
    [(tensor([1]), 0), (tensor([0, 2]), 2)]
    """
    return [((starts == place).nonzero().flatten(), place) for place in sorted(set(starts.tolist()))]
