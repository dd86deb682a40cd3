"""Keys or values as a cache keeps them: narrower than they are used, or only the last of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import whole
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown


@dataclass(frozen=True)
class Stored:
    """Vectors of positions `first` and on, (batch, kv_heads, held, dim); a number is `numbers · scales`.

    It stands wherever attention takes k or v. Its `shape` counts the positions before `first` too, which are gone:
    a pattern that reaches one of them is refused.

    Args:
        numbers: (batch, kv_heads, held, dim), floating-point or int8.
        scales: (batch, kv_heads, held, 1), what int8 numbers are multiplied with; None for floating-point ones.
        first: position of the first vector held.

    >>> Stored(torch.zeros(2, 3, 5, 8, dtype=torch.bfloat16), first=4).shape
    torch.Size([2, 3, 9, 8])
    """

    numbers: torch.Tensor
    scales: torch.Tensor | None = None
    first: int = 0

    def __post_init__(self) -> None:
        for name, one in (("numbers", self.numbers), ("scales", self.scales)):
            if name == "scales" and one is None:
                continue
            if not isinstance(one, torch.Tensor) or one.is_nested or one.layout != torch.strided:
                raise ShapeError(f"stored {name} are {shown(one)}; they need to be a dense tensor")
        object.__setattr__(self, "first", whole("the position of the first vector stored", self.first, 0))
        if self.numbers.dim() != 4 or (self.numbers.dtype == torch.int8) != (self.scales is not None):
            raise ShapeError(
                f"stored numbers are {self.numbers.dtype} {tuple(self.numbers.shape)}; they need (batch, kv_heads, "
                f"held, dim), and scales if they are int8"
            )

    @property
    def shape(self) -> torch.Size:
        """(batch, kv_heads, positions, dim), those no longer held included."""
        batch, kv_heads, held, dim = self.numbers.shape
        return torch.Size((batch, kv_heads, self.first + held, dim))

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self.numbers.dtype

    @property
    def device(self) -> torch.device:
        """Of the numbers."""
        return self.numbers.device

    @property
    def requires_grad(self) -> bool:
        """Does autograd remember where the numbers came from?"""
        return self.numbers.requires_grad

    def dim(self) -> int:
        """Always 4."""
        return self.numbers.dim()

    def cut(self, keys: range) -> Stored:
        """The vectors at the positions `keys` alone, counted from 0.

        Raises:
            ArgumentError: positions that are no longer held.
        """
        if keys and keys.start < self.first:
            raise ArgumentError(
                f"keys from position {keys.start} on are needed, and this cache holds those from {self.first} on; "
                f"use a pattern that reaches back less, or a larger cache"
            )
        part = slice(keys.start - self.first, keys.stop - self.first) if keys else slice(0, 0)
        return Stored(self.numbers[:, :, part], None if self.scales is None else self.scales[:, :, part])

    def hidden(self, hidden: torch.Tensor) -> Stored:
        """Zeros at the keys where `hidden`, (batch or 1, kv_heads or 1, held, 1), is True."""
        scales = None if self.scales is None else self.scales.masked_fill(hidden, 0)
        return Stored(self.numbers.masked_fill(hidden, 0), scales, self.first)

    def widened(self, dtype: torch.dtype) -> torch.Tensor:
        """The vectors held, as a tensor of `dtype`."""
        wide = self.numbers.to(dtype)
        return wide if self.scales is None else wide * self.scales.to(dtype)
