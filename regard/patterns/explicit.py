"""Patterns of your own: a boolean mask, or a function of positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from regard.arguments import count_of, kind_of, refuse_wrapper
from regard.errors import ArgumentError, ShapeError
from regard.patterns.arguments import new_serial, same_serial
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid, common_shape
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class Explicit(Pattern):
    """Row r of the mask is the r-th query of the call, column j its j-th key; True = may look.

    Args:
        mask: booleans (q_len, k_len) or (batch or 1, heads or 1, q_len, k_len). It is copied, and the pattern is
            equal only to itself. Rows are rows of one call, not positions: it is refused with a cache.

    >>> Explicit(torch.eye(2, dtype=torch.bool)).count(2, 2)
    2
    """

    mask: torch.Tensor
    serial: int = field(default=0, init=False, repr=False)

    compares_positions = False
    by_value = False
    of_one_call = True
    structured = False
    no_text = "it holds a tensor"

    def __post_init__(self) -> None:
        mask = self.mask
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            given = f"dtype {mask.dtype}" if isinstance(mask, torch.Tensor) else kind_of(mask)
            raise ArgumentError(
                f"Explicit needs a boolean mask (True = may look) and was given {given}; convert it with mask.bool() "
                f"if 1 means may look, or add scores as bias="
            )
        if mask.dim() not in (2, 4):
            raise ShapeError(
                f"Explicit's mask has shape {tuple(mask.shape)}; it needs (q_len, k_len) or "
                f"(batch or 1, heads or 1, q_len, k_len)"
            )
        refuse_wrapper("Explicit's mask", mask)
        object.__setattr__(self, "mask", mask.detach().clone())
        object.__setattr__(self, "serial", new_serial())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The mask at these positions; its last row is aligned with the last key."""
        q_len, k_len = self.mask.shape[-2:]
        return self.mask.to(k_pos.device)[..., q_pos - (k_len - q_len), k_pos]

    def evaluate(self, grid: Grid) -> torch.Tensor:
        self.check(0, 0, grid.q_len, grid.k_len)
        rows, keys = grid.rows, grid.keys
        return self.mask.to(grid.device)[..., rows.start : rows.stop, keys.start : keys.stop]

    @property
    def varies_by_head(self) -> bool:  # type: ignore[override]
        return self.mask.dim() == 4 and self.mask.shape[1] > 1

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.mask.dim() == 4 and self.mask.shape[0] > 1

    @property
    def batch_rows(self) -> int:
        return self.mask.shape[0] if self.mask.dim() == 4 else 1

    def for_head(self, head: int) -> Pattern:
        return Explicit(self.mask[:, head : head + 1]) if self.varies_by_head else self

    def of_heads(self, heads: range, of: int) -> Pattern:
        return Explicit(self.mask[:, heads.start : heads.stop]) if self.varies_by_head else self

    def of_queries(self, rows: range, k_len: int) -> Pattern:
        return Explicit(self.mask[..., rows.start : rows.stop, :k_len])

    def for_row(self, row: int) -> Pattern:
        return Explicit(self.mask[row : row + 1]) if self.varies_by_row else self

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        shape = tuple(self.mask.shape)
        if (way := _key_mask_of(shape, batch, q_len, k_len)) is not None:
            raise ShapeError(
                f"Explicit's mask {shape} looks like key padding of {count_of(batch, 'rows')} and "
                f"{count_of(k_len, 'keys')}, and this call needs "
                f"{(q_len, k_len)} queries and keys; give {way}, or KeySpan(0, lengths) for padding behind the keys"
            )
        if shape[-2:] != (q_len, k_len):
            raise ShapeError(f"Explicit's mask is for {shape[-2:]} queries and keys; this call has {(q_len, k_len)}")
        for axis, size, own in zip(("batch", "heads"), (batch, heads), shape[:-2], strict=False):
            if size and own not in (1, size):
                raise ShapeError(f"Explicit's mask {shape} has {own} on axis '{axis}'; the call has {size}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explicit) and same_serial(self, other)

    def __hash__(self) -> int:
        return hash(("Explicit", self.serial))

    def __str__(self) -> str:
        return f"explicit(<{' x '.join(map(str, self.mask.shape))} booleans>)"


def _key_mask_of(shape: tuple[int, ...], batch: int, q_len: int, k_len: int) -> str | None:
    """The KeyMask of a key padding mask (batch, k_len) or (batch, 1, 1, k_len); None for another shape."""
    if shape[-2:] == (q_len, k_len) or not batch:
        return None
    return {(batch, k_len): "KeyMask(mask)", (batch, 1, 1, k_len): "KeyMask(mask[:, 0, 0])"}.get(shape)


Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@brief
@dataclass(frozen=True)
class Where(Pattern):
    """A query may look at a key where `function(q_pos, k_pos)` is True; equal if the function is the same object.

    Args:
        function: takes broadcastable integer tensors of positions, returns booleans of the broadcast shape.

    >>> Where(lambda q_pos, k_pos: (q_pos + k_pos) % 2 == 0).dense(2, 2).int().tolist()
    [[1, 0], [0, 1]]
    """

    function: Rule

    by_value = False
    by_numbers = False
    structured = False
    no_text = "it holds a function"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ArgumentError(f"Where needs a function of (q_pos, k_pos) and was given {self.function!r}")

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        allowed = self.function(q_pos, k_pos)
        if not isinstance(allowed, torch.Tensor) or allowed.dtype != torch.bool:
            kind = allowed.dtype if isinstance(allowed, torch.Tensor) else type(allowed).__name__
            raise ArgumentError(f"the function in {self} answered with {kind}; it needs a boolean tensor")
        wanted = common_shape(q_pos.shape, k_pos.shape)
        try:
            return allowed.expand(common_shape(allowed.shape, wanted))
        except (RuntimeError, ShapeError):
            raise ShapeError(
                f"the function in {self} answered with shape {tuple(allowed.shape)} for positions of {tuple(wanted)}"
            ) from None

    def __str__(self) -> str:
        return f"where({getattr(self.function, '__name__', 'function')})"
