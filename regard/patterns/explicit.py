"""Patterns of your own: a boolean mask, one boolean for each key, or a function of positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from regard.arguments import count_of, in_memory, kind_of, refuse_wrapper
from regard.errors import ArgumentError, ShapeError
from regard.patterns.bands import KeySpan
from regard.patterns.base import Pattern, checked_truth
from regard.patterns.grid import Grid, common_shape, true_runs
from regard.patterns.held import (
    HOLDS_TENSOR,
    TensorPattern,
    at_positions,
    checked_tensor,
    in_words,
    new_serial,
)
from regard.patterns.one_call import RowsOfOneCall
from regard.patterns.position_sets import KeySet
from regard.patterns.row_keys import RowKeys, has_numbers
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class Explicit(RowsOfOneCall, TensorPattern):
    """Row r of the mask is the r-th query of the call, column j its j-th key; True = may look.

    Args:
        mask: booleans (q_len, k_len) or (batch or 1, heads or 1, q_len, k_len). It is copied, and the pattern is
            equal only to itself. Rows are rows of one call, not positions: it is refused with a cache.

    >>> Explicit(torch.eye(2, dtype=torch.bool)).count(2, 2)
    2
    """

    mask: torch.Tensor

    compares_positions = False
    takes_cache = False
    structured = False
    no_text = HOLDS_TENSOR

    def __post_init__(self) -> None:
        mask = self.mask
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            kind = f"dtype {mask.dtype}" if isinstance(mask, torch.Tensor) else kind_of(mask)
            raise ArgumentError(
                f"Explicit needs a boolean mask (True = may look) and was given {kind}; convert it with mask.bool() "
                f"if 1 means may look, or add scores as bias="
            )
        if mask.dim() not in (2, 4):
            raise ShapeError(
                f"Explicit's mask has shape {tuple(mask.shape)}; it needs (q_len, k_len) or "
                f"(batch or 1, heads or 1, q_len, k_len)"
            )
        refuse_wrapper("Explicit's mask", mask)
        object.__setattr__(self, "mask", in_memory("Explicit's mask", mask).detach().clone())
        object.__setattr__(self, "serial", new_serial())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The mask at these positions; its last row is aligned with the last key."""
        q_len, k_len = self.mask.shape[-2:]
        q_pos = in_memory("q_pos", q_pos)
        k_pos = in_memory("k_pos", k_pos)
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

    @cached_property
    def row_keys(self) -> RowKeys | None:  # ty: ignore[incompatible-attribute-override]
        if not has_numbers(self.mask):
            return None
        q_len, k_len = self.mask.shape[-2:]
        mask = self.mask.cpu()
        if mask.dim() == 2:
            mask = mask[None, None]  # (1, 1, q_len, k_len)
        return RowKeys(("explicit", *mask.shape[:2]), mask=mask, of_call=(q_len, k_len))

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        shape = tuple(self.mask.shape)
        way_out = _key_mask_instead(shape, batch, q_len, k_len)
        if way_out is not None:
            raise ShapeError(
                f"Explicit's mask {shape} looks like key padding of {count_of(batch, 'rows')} and "
                f"{count_of(k_len, 'keys')}, and this call needs "
                f"{(q_len, k_len)} queries and keys; give {way_out}, or KeySpan(0, lengths) for padding behind the keys"
            )
        if shape[-2:] != (q_len, k_len):
            raise ShapeError(
                f"Explicit's mask is for {shape[-2:]} queries and keys; this call has {(q_len, k_len)}"
            )
        if len(shape) == 2:
            return
        for axis, size, of_mask in (("batch", batch, shape[0]), ("heads", heads, shape[1])):
            if size and of_mask not in (1, size):
                raise ShapeError(
                    f"Explicit's mask {shape} has {of_mask} on axis '{axis}'; the call has {size}"
                )

    def __str__(self) -> str:
        return f"explicit({in_words(self.mask, 'booleans')})"


def _key_mask_instead(shape: tuple[int, ...], batch: int, q_len: int, k_len: int) -> str | None:
    """How a key padding mask (batch, k_len) or (batch, 1, 1, k_len) is written as a KeyMask; None for another shape."""
    if shape[-2:] == (q_len, k_len) or not batch:
        return None
    if shape == (batch, k_len):
        return "KeyMask(mask)"
    if shape == (batch, 1, 1, k_len):
        return "KeyMask(mask[:, 0, 0])"
    return None


@brief
@dataclass(frozen=True, eq=False)
class KeyMask(TensorPattern):
    """Every query may look at the keys where the mask is True; use it for padding that has holes.

    It holds batch · k_len booleans, never q_len · k_len. On the CPU one plan serves every mask, of every length, alone
    and joined by `&` with bands and spans. If the keys that are True are one range without holes, `KeySpan` needs two
    numbers for each row.

    Args:
        mask: booleans by key position, (k_len,), or (batch, k_len) with a row for each batch row; True = may look. A
            key beyond the mask is hidden. The mask is copied, and the pattern is equal only to itself.

    >>> KeyMask(torch.tensor([True, False, True])).dense(1, 3).int().tolist()
    [[1, 0, 1]]
    >>> KeyMask(torch.tensor([[True, False], [True, True]])).dense(1, 2).shape
    torch.Size([2, 1, 1, 2])
    """

    mask: torch.Tensor

    query_free = True
    compares_positions = False
    no_text = HOLDS_TENSOR

    def __post_init__(self) -> None:
        needs = "booleans, True = may look: mask.bool() if 1 means may look, or ~mask if True means padding"
        mask = checked_tensor(
            "KeyMask's mask", self.mask, (torch.bool,), needs, "(k_len,) or (batch, k_len)"
        )
        self.hold("mask", mask.clone())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        k_pos = torch.broadcast_tensors(q_pos, k_pos)[1]
        if not self.mask.shape[-1]:
            return torch.zeros_like(k_pos, dtype=torch.bool)
        live, known = at_positions(self.mask, k_pos)
        return live & known

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.mask.dim() == 2

    @property
    def batch_rows(self) -> int:
        return self.mask.shape[0] if self.mask.dim() == 2 else 1

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if self.mask.shape[-1] < k_len:
            raise ShapeError(
                f"KeyMask's mask is for {count_of(self.mask.shape[-1], 'keys')} and the call has {k_len}; give a "
                f"boolean for every key, those of a cache included"
            )
        if self.varies_by_row and batch and self.mask.shape[0] != batch:
            raise ShapeError(
                f"KeyMask's mask has {count_of(len(self.mask), 'rows')} but the batch has {batch}"
            )

    def settled(self, queries: range | None, k_len: int) -> Pattern:
        """The equal span of keys where the visible keys of each batch row are one run."""
        starts = []
        stops = []
        for row in self.rows:
            if len(row.runs) > 1:
                return self
            span = row.runs[0] if row.runs else range(0)
            starts.append(span.start)
            stops.append(span.stop)
        if not self.varies_by_row:
            return KeySpan(starts[0], stops[0])
        return KeySpan(starts, stops)

    def form(self) -> Pattern | None:
        """Without rows that differ, a set of ranges."""
        return None if self.varies_by_row else self.rows[0]

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        if not self.varies_by_row:
            return self.rows[0].on_lattice(stride, residue)
        if (stride, residue) not in self._lattices:
            self._lattices[stride, residue] = KeyMask(self.mask[..., residue::stride])
        return self._lattices[stride, residue]

    @cached_property
    def row_keys(self) -> RowKeys | None:  # ty: ignore[incompatible-attribute-override]
        if not has_numbers(self.mask):
            return None
        return RowKeys(("key_mask", self.batch_rows), mask=self.mask.cpu())

    @cached_property
    def rows(self) -> tuple[KeySet, ...]:
        """The visible keys of each batch row as ranges."""
        return tuple(KeySet(true_runs(row)) for row in self.mask.view(-1, self.mask.shape[-1]))

    @cached_property
    def _lattices(self) -> dict[tuple[int, int], KeyMask]:
        return {}

    def __str__(self) -> str:
        return f"key_mask({in_words(self.mask, 'booleans')})"


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
            raise ArgumentError(
                f"Where needs a function of (q_pos, k_pos) and was given {self.function!r}"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        allowed = checked_truth(f"the function in {self}", self.function(q_pos, k_pos))
        wanted = common_shape(q_pos.shape, k_pos.shape)
        try:
            return allowed.expand(common_shape(allowed.shape, wanted))
        except (RuntimeError, ShapeError):
            raise ShapeError(
                f"the function in {self} returned shape {tuple(allowed.shape)} for positions of {tuple(wanted)}"
            ) from None

    def __str__(self) -> str:
        return f"where({getattr(self.function, '__name__', 'function')})"
