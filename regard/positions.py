"""Positions of tokens: added to embeddings (Sinusoidal, Learned) or rotated into queries and keys (Rotary)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from regard.arguments import real, whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown

__all__ = ["Sinusoidal", "Learned", "Rotary"]


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


@dataclass(frozen=True)
class Rotary:
    """Turns pair c of a head's dimensions by the angle `p · base^(-2c / dims)` at position p.

    Args:
        base: sets the slowest rotation.
        dims: how many leading dimensions of a head are turned, an even number; None for all.
        pairs: which dimensions form pair c: "halves" c and c + dims / 2 (Llama, GPT-NeoX), "neighbours" 2c and
            2c + 1 (the paper, GPT-J). Weights trained with one do not fit the other.

    Source: RoFormer, Su et al. 2021, section 3.2.2.

    >>> x = torch.randn(1, 2, 3, 8)
    >>> torch.allclose(Rotary().rotate(x, torch.zeros(3, dtype=torch.long)), x)
    True
    """

    base: float = 10_000.0
    dims: int | None = None
    pairs: str = "halves"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checked_base("Rotary", self.base))
        if self.dims is not None:
            object.__setattr__(self, "dims", whole("Rotary's dims", self.dims))
        if self.pairs not in ("halves", "neighbours"):
            raise ArgumentError(f"Rotary(pairs={shown(self.pairs)}): pairs are 'halves' or 'neighbours'")
        if self.dims is not None and (self.dims < 2 or self.dims % 2):
            raise ArgumentError(f"Rotary(dims={self.dims}): rotations turn pairs, so dims is even and above 0")

    def check(self, head_dim: int) -> None:
        """Raise an ArgumentError if heads of this size cannot be turned."""
        dims = head_dim if self.dims is None else self.dims
        if dims % 2 or dims > head_dim:
            raise ArgumentError(f"Rotary turns pairs within head_dim, and {dims} of {head_dim} dimensions are no pairs")

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads (batch, heads, length, head_dim) turned to their positions, (length,) or (batch, length)."""
        check_positions(positions)
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or not x.dtype.is_floating_point:
            raise ShapeError(f"Rotary turns heads (batch, heads, length, head_dim) and was given {shown(x)}")
        if positions.shape[-1:] != x.shape[2:3] or tuple(positions.shape[:-1]) not in ((), (1,), (len(x),)):
            raise ShapeError(
                f"positions {tuple(positions.shape)} do not fit heads {tuple(x.shape)}; give (length,) or "
                f"(batch, length)"
            )
        dims = x.shape[-1] if self.dims is None else self.dims
        self.check(x.shape[-1])
        angles = positions[..., None].double() * frequencies(dims, self.base, x.device)  # (.., length, dims / 2)
        if positions.dim() == 2:
            angles = angles[:, None]  # (batch, 1, length, dims / 2)
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)
        turned, rest = x[..., :dims].to(wide), x[..., dims:]
        one, two = turned.chunk(2, -1) if self.pairs == "halves" else (turned[..., 0::2], turned[..., 1::2])
        both = one * cos - two * sin, one * sin + two * cos
        turned = torch.cat(both, -1) if self.pairs == "halves" else torch.stack(both, -1).flatten(-2)
        return torch.cat([turned.to(x.dtype), rest], -1)
