"""The pattern of a key padding mask: one boolean for each key, with holes where there are any."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from regard.arguments import count_of, kind_of, refuse_wrapper
from regard.errors import ArgumentError, ShapeError
from regard.patterns.arguments import new_serial, same_serial
from regard.patterns.bands import KeySpan
from regard.patterns.base import Pattern
from regard.patterns.position_sets import KeySet
from regard.patterns.ranges import Segments, over_rows
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class KeyMask(Pattern):
    """Every query may look at the keys where the mask is True; use it for padding that has holes.

    It holds batch · k_len booleans, never q_len · k_len. If the keys that are True are one range without holes, use
    `KeySpan`, which needs two numbers for each row and, with lists instead of tensors, lets equal calls share a plan.

    Args:
        mask: booleans by key position, (k_len,), or (batch, k_len) with a row for each batch row; True = may look. A
            key beyond the mask is hidden. The mask is copied, and the pattern is equal only to itself.

    >>> KeyMask(torch.tensor([True, False, True])).dense(1, 3).int().tolist()
    [[1, 0, 1]]
    >>> KeyMask(torch.tensor([[True, False], [True, True]])).dense(1, 2).shape
    torch.Size([2, 1, 1, 2])
    """

    mask: torch.Tensor
    serial: int = field(default=0, init=False, repr=False)

    query_free = True
    compares_positions = False
    by_value = False
    no_text = "it holds a tensor"

    def __post_init__(self) -> None:
        mask = self.mask
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            given = f"a {mask.dtype} tensor" if isinstance(mask, torch.Tensor) else kind_of(mask)
            raise ArgumentError(
                f"KeyMask's mask is {given}; it needs booleans, True = may look: mask.bool() if 1 means may look, "
                f"or ~mask if True means padding"
            )
        if mask.dim() not in (1, 2) or (mask.dim() == 2 and not mask.shape[0]):
            raise ShapeError(f"KeyMask's mask has shape {tuple(mask.shape)}; it needs (k_len,) or (batch, k_len)")
        refuse_wrapper("KeyMask's mask", mask)
        mask = mask.detach().clone()
        object.__setattr__(self, "mask", mask[0] if mask.dim() == 2 and mask.shape[0] == 1 else mask)
        object.__setattr__(self, "serial", new_serial())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        length, mask = self.mask.shape[-1], self.mask.to(k_pos.device)
        k_pos = torch.broadcast_tensors(q_pos, k_pos)[1]
        if not length:
            return torch.zeros_like(k_pos, dtype=torch.bool)
        known, inside = (k_pos >= 0) & (k_pos < length), k_pos.clamp(0, length - 1)
        if not self.varies_by_row:
            return mask[inside] & known
        inside = inside[(None,) * (4 - inside.dim())]
        rows = torch.arange(mask.shape[0], device=mask.device).view(-1, 1, 1, 1)
        return mask[rows, inside] & known

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.mask.dim() == 2

    @property
    def batch_rows(self) -> int:
        return len(self._rows)

    def for_row(self, row: int) -> Pattern:
        return self._rows[row if self.varies_by_row else 0]

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if self.mask.shape[-1] < k_len:
            raise ShapeError(
                f"KeyMask's mask is for {count_of(self.mask.shape[-1], 'keys')} and the call has {k_len}; give a "
                f"boolean for every key, those of a cache included"
            )
        if self.varies_by_row and batch and self.mask.shape[0] != batch:
            raise ShapeError(f"KeyMask's mask has {count_of(len(self.mask), 'rows')} but the batch has {batch}")

    def settled(self, queries: range | None, k_len: int) -> Pattern:
        """The equal span of keys where the live keys of each batch row are one run."""
        runs = [row.runs for row in self._rows]
        if any(len(one) > 1 for one in runs):
            return self
        ends = [(one[0].start, one[0].stop) if one else (0, 0) for one in runs]
        start, stop = ([end[side] for end in ends] for side in (0, 1))
        return KeySpan(start, stop) if self.varies_by_row else KeySpan(start[0], stop[0])

    def form(self) -> Pattern | None:
        """Without rows that differ, a set of ranges."""
        return None if self.varies_by_row else self._rows[0]

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """The keys that are live in every batch row, and those that are live in any."""
        return over_rows(row.segments(first, last, k_len) for row in self._rows)

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        if not self.varies_by_row:
            return self._rows[0].on_lattice(stride, residue)
        name = (stride, residue)
        if name not in self._lattices:
            self._lattices[name] = KeyMask(self.mask[..., residue::stride])
        return self._lattices[name]

    @cached_property
    def _rows(self) -> tuple[KeySet, ...]:
        """The live keys of each batch row as ranges."""
        edges = torch.nn.functional.pad(self.mask.cpu().view(-1, self.mask.shape[-1]).to(torch.int8), (1, 1)).diff()
        found = []
        for row in edges:
            starts, stops = ((row == sign).nonzero().flatten().tolist() for sign in (1, -1))
            found.append(KeySet(tuple(map(range, starts, stops))))
        return tuple(found)

    @cached_property
    def _lattices(self) -> dict[tuple[int, int], KeyMask]:
        return {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyMask) and same_serial(self, other)

    def __hash__(self) -> int:
        return hash(("KeyMask", self.serial))

    def __str__(self) -> str:
        return f"key_mask(<{' x '.join(map(str, self.mask.shape))} booleans>)"
