"""Positions as rotations of queries and keys, so that a score depends on their distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.positions.sinusoidal import check_positions, checked_base, frequencies


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
