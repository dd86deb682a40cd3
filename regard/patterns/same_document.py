"""Several texts packed into one: each sees itself alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property, reduce

import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns.algebra import NOTHING
from regard.patterns.base import Pattern
from regard.patterns.identity import new_serial
from regard.patterns.part import Part
from regard.patterns.ranges import Ranges, Segments, common, union


@dataclass(frozen=True, eq=False)
class SameDocument(Part):
    """A query may see the keys of its own document: `ids[i] == ids[j]`.

    A position outside of `ids` sees nobody and is seen by nobody.

    Args:
        ids: whole numbers by position, (length,), or (batch, length) with a row for each batch row. They are copied,
            and the pattern is equal only to itself.

    >>> SameDocument(torch.tensor([7, 7, 3])).dense(3, 3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    ids: torch.Tensor
    serial: int = field(default=0, init=False, repr=False)

    by_value = False

    def __post_init__(self) -> None:
        ids = self.ids
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            found = f"a {ids.dtype} tensor" if isinstance(ids, torch.Tensor) else f"a {type(ids).__name__}"
            raise ArgumentError(f"SameDocument's ids are {found}; it needs a tensor of whole numbers (int64)")
        if ids.dim() not in (1, 2) or not ids.numel():
            raise ShapeError(f"SameDocument's ids have shape {tuple(ids.shape)}; it needs (length,) or (batch, length)")
        ids = ids.detach().to(torch.int64, copy=True)
        object.__setattr__(self, "ids", ids[0] if ids.dim() == 2 and len(ids) == 1 else ids)
        object.__setattr__(self, "serial", new_serial())

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.ids.dim() == 2

    @property
    def rows(self) -> tuple[SameDocument, ...]:
        """One pattern for each batch row; this one itself where all rows are alike."""
        return self._rows if self.varies_by_row else (self,)

    @property
    def batch_rows(self) -> int:
        return len(self.rows)

    def for_row(self, row: int) -> Pattern:
        return self.rows[row if self.varies_by_row else 0]

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if self.ids.shape[-1] < k_len:
            raise ShapeError(
                f"SameDocument's ids are for {self.ids.shape[-1]} positions and the call has {k_len} keys; "
                f"give an id for every key"
            )
        if self.varies_by_row and batch and len(self.ids) != batch:
            raise ShapeError(f"SameDocument's ids have {len(self.ids)} rows but the batch has {batch}")

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        (of_query, query_known), (of_key, key_known) = self._at(q_pos), self._at(k_pos)
        return (of_query == of_key) & query_known & key_known

    def _at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids at these positions, with four axes where rows differ, and whether there are any."""
        known = (positions >= 0) & (positions < self.ids.shape[-1])
        ids, inside = self.ids.to(positions.device), positions.clamp(0, self.ids.shape[-1] - 1)
        if not self.varies_by_row:
            return ids[inside], known
        inside = inside[(None,) * (4 - inside.dim())]
        rows = torch.arange(len(ids), device=ids.device).view(-1, 1, 1, 1)
        return ids[rows, inside], known

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """Of batch rows that differ, the keys that all rows are certain of and those that any may see."""
        found = [row._own_segments(first, last, k_len) for row in self.rows]
        return Segments(reduce(common, (one.full for one in found)), union(keys for one in found for keys in one.some))

    def _own_segments(self, first: int, last: int, k_len: int) -> Segments:
        starts, ids, places = self._documents
        length = self.ids.shape[-1]
        low, high = max(0, first), min(last, length - 1)
        if high < low:
            return Segments((), ())
        touched = set(ids[bisect_right(starts, low) - 1 : bisect_left(starts, high + 1)])
        keys = (range(max(0, min(k_len, length))),)
        some = common(union(run for one in touched for run in places[one]), keys)
        alike = len(touched) == 1 and (low, high) == (first, last)
        return Segments(some if alike else (), some)

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        if residue >= self.ids.shape[-1]:
            return NOTHING
        name = (stride, residue)
        if name not in self._lattices:
            self._lattices[name] = SameDocument(self.ids[..., residue::stride])
        return self._lattices[name]

    @cached_property
    def _rows(self) -> tuple[SameDocument, ...]:
        return tuple(SameDocument(row) for row in self.ids)

    @cached_property
    def _lattices(self) -> dict[tuple[int, int], SameDocument]:
        return {}

    @cached_property
    def _documents(self) -> tuple[list[int], list[int], dict[int, Ranges]]:
        """Where runs of equal ids start, the id of each run, and the runs of each id."""
        ids = self.ids.cpu()
        starts = [0, *((ids[1:] != ids[:-1]).nonzero().flatten() + 1).tolist()]
        names = ids[torch.tensor(starts, device="cpu")].tolist()
        places: dict[int, list[range]] = {}
        for name, start, stop in zip(names, starts, [*starts[1:], len(ids)], strict=True):
            places.setdefault(name, []).append(range(start, stop))
        return starts, names, {name: tuple(runs) for name, runs in places.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameDocument) and self.serial == other.serial

    def __hash__(self) -> int:
        return hash(("SameDocument", self.serial))

    def __str__(self) -> str:
        return f"same_document(<{' x '.join(map(str, self.ids.shape))} ids>)"
