"""Where the living part of each row of a batch lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import ShapeError
from regard.patterns import KeySpan
from regard.text.vocabularies import PAD


@dataclass(frozen=True)
class Live:
    """The first living place of each row, (batch,), and the padding as a pattern, None where there is none."""

    start: torch.Tensor
    span: KeySpan | None
    length: int

    @property
    def positions(self) -> torch.Tensor:
        """Each place's position in its text, (batch, length): 0 for the first living one; padding counts as 0."""
        places = torch.arange(self.length, device=self.start.device)
        return (places - self.start[:, None]).clamp(min=0)


def find_live(ids: torch.Tensor) -> Live:
    """The living part of ids (batch, length): what is left after padding on the left and on the right is cut.

    Raises:
        ShapeError: ids of another rank or dtype.

    >>> find_live(torch.tensor([[0, 5, 6], [7, 8, 9]])).positions.tolist()
    [[0, 0, 1], [0, 1, 2]]
    """
    if ids.dim() != 2 or ids.dtype != torch.int64:
        raise ShapeError(f"ids are {ids.dtype} {tuple(ids.shape)}; a batch of texts is int64 (batch, length)")
    batch, length = ids.shape
    living = ids != PAD
    if bool(living.all()):
        return Live(torch.zeros(batch, dtype=torch.int64, device=ids.device), None, length)
    places = torch.arange(length, device=ids.device)
    start = torch.where(living, places, length).amin(1) if length else places.new_zeros(batch)
    stop = torch.where(living, places + 1, 0).amax(1) if length else places.new_zeros(batch)
    return Live(torch.minimum(start, stop), KeySpan(start, stop), length)
