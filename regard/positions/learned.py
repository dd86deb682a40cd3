"""A vector for each position, learned with the rest."""

from __future__ import annotations

import torch
from torch import nn

from regard.arguments import whole
from regard.errors import ArgumentError, ShapeError
from regard.positions.sinusoidal import check_positions


class Learned(nn.Module):
    """A table with one vector a position, to be added to the embeddings.

    Args:
        length: positions 0 to length - 1 have a vector; later ones are refused.
        dim: size of the embeddings.

    Source: BERT, Devlin et al. 2019, section 3.

    >>> Learned(16, 4)(torch.tensor([[0, 15]])).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        length, dim = whole("Learned's length", length), whole("Learned's dim", dim)
        if length < 1 or dim < 1:
            raise ArgumentError(f"Learned(length={length}, dim={dim}): both are 1 or more")
        self.weight = nn.Parameter(torch.randn(length, dim) * 0.02)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """The vectors to add, (..., dim), for integer positions (...).

        Raises:
            ShapeError: a position that has no vector.
        """
        length = len(self.weight)
        check_positions(positions)
        if positions.numel() and not (0 <= int(positions.min()) and int(positions.max()) < length):
            raise ShapeError(
                f"positions {int(positions.min())} to {int(positions.max())} were asked for; this table has learned "
                f"0 to {length - 1}: shorten the text, or train with a longer table"
            )
        return self.weight[positions]

    def extra_repr(self) -> str:
        return f"length={len(self.weight)}, dim={self.weight.shape[1]}"
