"""Padding, found and moved to the right: inside a model every text begins at place 0, whatever its pattern counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.patterns import KeySpan
from regard.text.vocabularies import PAD


@dataclass(frozen=True)
class Aligned:
    """Ids (batch, length) whose padding is all on the right.

    `span` is the padding as a pattern, None where there is none; `start` (batch,) says how far each row was moved,
    None where none was.
    """

    ids: torch.Tensor
    span: KeySpan | None
    start: torch.Tensor | None

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, length, ...) computed on these ids, as it stands on the ids before they were moved."""
        if self.start is None:
            return x
        places = torch.arange(x.shape[1], device=x.device) - self.start[:, None]  # (batch, length)
        rows = torch.arange(len(x), device=x.device)[:, None]
        return x[rows, places.clamp(min=0)]


def align(ids: torch.Tensor) -> Aligned:
    """Ids (batch, length), padded with PAD on either side, as a model reads them.

    Raises:
        ShapeError: ids of another rank or dtype.

    >>> align(torch.tensor([[0, 5, 6], [7, 8, 9]])).ids.tolist()
    [[5, 6, 0], [7, 8, 9]]
    """
    if not isinstance(ids, torch.Tensor):
        raise ArgumentError(f"ids are {shown(ids)}; a batch of texts is an int64 tensor (batch, length)")
    if ids.dim() != 2 or ids.dtype != torch.int64:
        raise ShapeError(f"ids are {ids.dtype} {tuple(ids.shape)}; a batch of texts is int64 (batch, length)")
    living = ids != PAD
    if bool(living.all()):
        return Aligned(ids, None, None)
    length = ids.shape[1]
    places = torch.arange(length, device=ids.device)
    start = torch.where(living, places, length).amin(1)
    stop = torch.where(living, places + 1, 0).amax(1)
    start = torch.minimum(start, stop)  # a row of nothing but padding is not moved
    span = KeySpan(0, stop - start)
    if not bool(start.any()):
        return Aligned(ids, span, None)
    moved = ids.gather(1, (places + start[:, None]).clamp(max=length - 1))
    return Aligned(torch.where(places < (stop - start)[:, None], moved, PAD), span, start)
