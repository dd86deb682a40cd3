"""Positions of tokens: added to embeddings (Sinusoidal, Learned) or rotated into queries and keys (Rotary)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from regard.arguments import each, one_of, real, shown, whole
from regard.errors import ArgumentError, ShapeError

__all__ = ["Sinusoidal", "Learned", "Rotary"]


class Sinusoidal(nn.Module):
    """Sinusoidal positions, added to embeddings: `sin(p / base^(2c / dim))` in dimension 2c, the cosine in 2c + 1.

    Args:
        dim: size of the embeddings, an even number.
        base: the longest wave length is about `2π · base` positions.

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
    """Raise a ShapeError unless positions are an integer tensor."""
    if not isinstance(positions, torch.Tensor) or positions.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"positions are {shown(positions)}; give an integer tensor (int64)")


def checked_base(name: str, base: float) -> float:
    """The base of the wave lengths; an ArgumentError unless it is above 0."""
    base = real(f"{name}'s base", base)
    if base <= 0:
        raise ArgumentError(f"{name}'s base is {base}; wave lengths are powers of it, so give a number above 0")
    return base


def frequencies(dim: int, base: float, device: torch.device) -> torch.Tensor:
    """`base^(-2c / dim)` for c = 0 .. dim / 2 - 1, in float64, since float32 angles are wrong at position 100,000."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


class Learned(nn.Module):
    """Learned positions: a table with one vector per position, added to embeddings.

    Args:
        length: number of positions; later ones are refused.
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
            ShapeError: a position outside the table.
        """
        length = len(self.weight)
        check_positions(positions)
        known = not torch.compiler.is_exporting()  # a program that is exported has no numbers yet
        if known and positions.numel() and not (0 <= int(positions.min()) and int(positions.max()) < length):
            raise ShapeError(
                f"positions {int(positions.min())} to {int(positions.max())} were given and this table has "
                f"0 to {length - 1}; shorten the text, or train with a longer table"
            )
        return self.weight[positions]

    def extra_repr(self) -> str:
        return f"length={len(self.weight)}, dim={self.weight.shape[1]}"


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: rotates pair c of a head's dimensions by the angle `p · base^(-2c / dims)` at position p.

    Args:
        base: sets the slowest rotation.
        dims: number of leading dimensions to rotate, even; None for all.
        pairs: which dimensions form pair c: "halves" c and c + dims / 2 (Llama, GPT-NeoX), "neighbours" 2c and
            2c + 1 (the paper, GPT-J). Weights trained with one do not fit the other.
        frequencies: the angle of each pair at position 1, in place of those of the base; dims is then twice their
            number.

    Source: RoFormer, Su et al. 2021, section 3.2.2.

    >>> x = torch.randn(1, 2, 3, 8)
    >>> torch.allclose(Rotary().rotate(x, torch.zeros(3, dtype=torch.long)), x)
    True
    """

    base: float = 10_000.0
    dims: int | None = None
    pairs: str = "halves"
    frequencies: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.frequencies is not None:
            given = each("Rotary's frequencies", self.frequencies, "a number for each pair")
            angles = tuple(real("a frequency of Rotary", one) for one in given)
            if self.dims not in (None, 2 * len(angles)) or not angles:
                raise ArgumentError(
                    f"Rotary has {len(angles)} frequencies, one for each pair, and dims {self.dims}; leave dims out"
                )
            object.__setattr__(self, "frequencies", angles)
            object.__setattr__(self, "dims", 2 * len(angles))
        object.__setattr__(self, "base", checked_base("Rotary", self.base))
        if self.dims is not None:
            object.__setattr__(self, "dims", whole("Rotary's dims", self.dims))
        one_of("Rotary's pairs", self.pairs, ("halves", "neighbours"))
        if self.dims is not None and (self.dims < 2 or self.dims % 2):
            raise ArgumentError(f"Rotary(dims={self.dims}): pairs are rotated, so dims is even and above 0")

    def check(self, head_dim: int) -> None:
        """Raise an ArgumentError if heads of this size cannot be rotated."""
        dims = head_dim if self.dims is None else self.dims
        if dims % 2 or dims > head_dim:
            raise ArgumentError(
                f"Rotary rotates pairs of dimensions and cannot rotate {dims} of {head_dim}; use an even head_dim"
            )

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads (batch, heads, length, head_dim) rotated to their positions, (length,) or (batch, length)."""
        check_positions(positions)
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or not x.dtype.is_floating_point:
            raise ShapeError(f"Rotary rotates heads (batch, heads, length, head_dim), not {shown(x)}")
        if positions.shape[-1:] != x.shape[2:3] or tuple(positions.shape[:-1]) not in ((), (1,), (x.shape[0],)):
            raise ShapeError(
                f"positions {tuple(positions.shape)} do not fit heads {tuple(x.shape)}; give (length,) or "
                f"(batch, length)"
            )
        dims = self._dims_of(x)
        angles = self._angles(positions, dims, x.device)  # (.., length, dims / 2)
        if positions.dim() == 2:
            angles = angles[:, None]  # (batch, 1, length, dims / 2)
        wide = torch.promote_types(x.dtype, torch.float32)
        return self._turned(x, angles.cos().to(wide), angles.sin().to(wide))

    def rotate_from(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """Heads (batch, heads, length, head_dim) rotated to the positions start, start + 1, ..., as `rotate` does.

        The cosines of the last few starts and lengths are kept: all layers of a model rotate to the same positions.
        """
        dims, length = self._dims_of(x), x.shape[2]
        if _makes_other_tensors() or length > LENGTH_KEPT:
            return self.rotate(x, start + torch.arange(length, device=x.device))
        wide = torch.promote_types(x.dtype, torch.float32)
        return self._turned(
            x, *_cos_and_sin(self, start, length, dims, x.device, wide, torch.is_inference_mode_enabled())
        )

    def _angles(self, positions: torch.Tensor, dims: int, device: torch.device) -> torch.Tensor:
        """The angles of positions (..), (.., dims / 2) in float64."""
        if self.frequencies is None:
            return positions[..., None].double() * frequencies(dims, self.base, device)
        return positions[..., None].double() * torch.tensor(self.frequencies, dtype=torch.float64, device=device)

    def _dims_of(self, x: torch.Tensor) -> int:
        self.check(x.shape[-1])
        return x.shape[-1] if self.dims is None else self.dims

    def _turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The heads with their pairs rotated by angles (.., length, dims / 2) with these cosines and sines."""
        dims = 2 * cos.shape[-1]
        rotated, rest = x[..., :dims].to(cos.dtype), x[..., dims:]
        first, second = rotated.chunk(2, -1) if self.pairs == "halves" else (rotated[..., 0::2], rotated[..., 1::2])
        both = first * cos - second * sin, first * sin + second * cos
        rotated = torch.cat(both, -1) if self.pairs == "halves" else torch.stack(both, -1).flatten(-2)
        rotated = rotated.to(x.dtype)
        return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated


LENGTH_KEPT = 1024  # positions of a table of cosines that is kept


def _makes_other_tensors() -> bool:
    """Whether tensors that are made here must not be kept: they belong to a compiler, a tracer or a transform."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


@lru_cache(maxsize=8)
def _cos_and_sin(
    rotary: Rotary, start: int, length: int, dims: int, device: torch.device, dtype: torch.dtype, inference: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles of neighbouring positions, (length, dims / 2) in dtype.

    `inference`: whether inference_mode is on, whose tensors cannot be used where gradients are wanted.
    """
    angles = rotary._angles(start + torch.arange(length, device=device), dims, device)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def as_rotary(positions: Rotary | str | None) -> Rotary | None:
    """The positions of an attention layer: a Rotary, "rotary" for its defaults, or None.

    >>> as_rotary("rotary")
    Rotary(base=10000.0, dims=None, pairs='halves', frequencies=None)
    """
    if positions is None or isinstance(positions, Rotary):
        return positions
    name = positions if isinstance(positions, str) else ""
    if name == "rotary":
        return Rotary()
    added = "sinusoidal" if name == "sinusoidal" or isinstance(positions, Sinusoidal) else "learned"
    if isinstance(positions, Sinusoidal | Learned) or name in ("sinusoidal", "learned"):
        raise ArgumentError(
            f"{added} positions are added to embeddings, before the layer; the layer itself takes Rotary(), 'rotary' "
            f"or None"
        )
    if name.lower() in ("alibi", "t5"):
        raise ArgumentError(
            f"positions is {name!r}, which is a bias by distance; give it to the call: "
            f"layer(x, bias=regard.bias.{'ALiBi()' if name.lower() == 'alibi' else 'T5Relative(heads)'})"
        )
    raise ArgumentError(f"positions is {shown(positions)}; give Rotary(), 'rotary' or None")
