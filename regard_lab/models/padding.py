"""Detection of padding. Texts are moved to the left, so that inside a model each begins at position 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import shown
from regard.errors import ArgumentError, ShapeError
from regard.patterns import KeySpan
from regard_lab.text.vocabularies import PAD


@dataclass(frozen=True)
class Aligned:
    """Ids (batch, length) with all padding on the right.

    `span` is a pattern of the keys without padding, None if there is none. `start` (batch,) is how far each batch row
    was moved to the left, None if none was.
    """

    ids: torch.Tensor
    span: KeySpan | None
    start: torch.Tensor | None

    def move(self, x: torch.Tensor | None) -> torch.Tensor | None:
        """Move x (batch, length, ...), given for the original ids, as the ids were moved; None stays None."""
        if self.start is None or x is None:
            return x
        places = torch.arange(x.shape[1], device=x.device) + self.start[:, None]  # (batch, length)
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        return x[rows, places.clamp(max=x.shape[1] - 1)]

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """Move x (batch, length, ...), computed on these ids, back to the positions of the original ids."""
        if self.start is None:
            return x
        places = torch.arange(x.shape[1], device=x.device) - self.start[:, None]  # (batch, length)
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        return x[rows, places.clamp(min=0)]


def align(ids: torch.Tensor) -> Aligned:
    """Move ids (batch, length), padded with PAD on either side, so that all padding is on the right.

    >>> align(torch.tensor([[0, 5, 6], [7, 8, 9]])).ids.tolist()
    [[5, 6, 0], [7, 8, 9]]
    """
    if not isinstance(ids, torch.Tensor):
        raise ArgumentError(f"ids are {shown(ids)}; give an int64 tensor (batch, length)")
    if ids.dim() != 2 or ids.dtype != torch.int64:
        raise ShapeError(f"ids are {ids.dtype} {tuple(ids.shape)}; give int64 (batch, length)")
    is_text = ids != PAD
    if bool(is_text.all()):
        return Aligned(ids, None, None)
    length = ids.shape[1]
    places = torch.arange(length, device=ids.device)
    start = torch.where(is_text, places, length).amin(1)
    stop = torch.where(is_text, places + 1, 0).amax(1)
    start = torch.minimum(start, stop)  # a batch row of padding only is not moved
    span = KeySpan(0, stop - start)
    if not bool(start.any()):
        return Aligned(ids, span, None)
    moved = ids.gather(1, (places + start[:, None]).clamp(max=length - 1))
    return Aligned(torch.where(places < (stop - start)[:, None], moved, PAD), span, start)
