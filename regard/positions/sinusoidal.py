"""The Transformer paper's waves."""

from __future__ import annotations

import torch
from torch import nn

from regard.arguments import real, whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown


class Sinusoidal(nn.Module):
    """Adds to embedding 2c a sine and to 2c + 1 a cosine of the position: `sin(p / base^(2c / dim))`.

    Args:
        dim: size of the embeddings, an even number.
        base: the slowest wave is about `2π · base` positions long.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.5.

    >>> Sinusoidal(4)(torch.tensor([[0]])).tolist()
    [[[0.0, 1.0, 0.0, 1.0]]]
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        dim = whole("Sinusoidal's dim", dim)
        if dim < 2 or dim % 2:
            raise ArgumentError(f"Sinusoidal(dim={dim}): sines and cosines come in pairs, so dim is even and above 0")
        self.dim, self.base = dim, checked_base("Sinusoidal", base)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """The vectors to add, (..., dim) in float32, for integer positions (...)."""
        check_positions(positions)
        angles = positions[..., None].double() * frequencies(self.dim, self.base, positions.device)  # (..., dim / 2)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).float()

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def check_positions(positions: torch.Tensor) -> None:
    """Raise a ShapeError unless these are a tensor of whole numbers."""
    if not isinstance(positions, torch.Tensor) or positions.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"positions are {shown(positions)}; they need to be a tensor of whole numbers (int64)")


def checked_base(name: str, base: float) -> float:
    """The number whose powers are the wave lengths, or a refusal."""
    if (found := real(f"{name}'s base", base)) <= 0:
        raise ArgumentError(f"{name}'s base is {found}; wave lengths are powers of it, so it is above 0")
    return found


def frequencies(dim: int, base: float, device: torch.device) -> torch.Tensor:
    """`base^(-2c / dim)` for c = 0 .. dim / 2 - 1, in float64: at position 100,000 float32 angles are noise."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
