"""Documents packed into one row, each with positions of its own: what attention makes of jagged nested tensors."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.part import Part
from regard.patterns.ranges import Segments, union


@dataclass(frozen=True)
class PerDocument(Part):
    """A query sees the keys of its own document that `inner` allows there; positions count from the document's start.

    In each document the last query meets the last key. Row d of an inner pattern with batch rows is document d.

    Args:
        inner: the pattern within a document.
        q_edges: where documents start among the packed queries, and where the last one ends.
        k_edges: likewise among the packed keys.

    >>> from regard.patterns import Causal
    >>> PerDocument(Causal(), (0, 2, 3), (0, 2, 3)).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    inner: Pattern
    q_edges: tuple[int, ...]
    k_edges: tuple[int, ...]

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return self.inner.by_value

    @property
    def structured(self) -> bool:  # type: ignore[override]
        return self.inner.structured

    @property
    def varies_by_head(self) -> bool:  # type: ignore[override]
        return self.inner.varies_by_head

    def for_head(self, head: int) -> Pattern:
        return PerDocument(self.inner.for_head(head), self.q_edges, self.k_edges) if self.varies_by_head else self

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for rows, keys in {(len(rows), len(keys)) for _, rows, keys in self._documents}:
            self.inner.check(len(self._documents), heads, rows, keys)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The truth for positions in the packed row, for an inner pattern that does not ask how many keys there are."""
        shape = torch.broadcast_shapes(q_pos.shape, k_pos.shape)
        allowed = torch.zeros(shape, dtype=torch.bool, device=k_pos.device)
        for inner, rows, keys in self._documents:
            own = (q_pos >= rows.start) & (q_pos < rows.stop) & (k_pos >= keys.start) & (k_pos < keys.stop)
            first = len(keys) - len(rows) - rows.start
            allowed = allowed | (own & inner.allows(q_pos + first, k_pos - keys.start))
        return allowed

    def evaluate(self, grid: Grid) -> torch.Tensor:
        assert isinstance(grid.q_start, int)
        first = grid.q_start + grid.rows.start
        allowed = torch.zeros(len(grid.rows), len(grid.keys), dtype=torch.bool, device=grid.device)
        for inner, rows, keys in self._touched(first, first + len(grid.rows) - 1):
            low, high = max(rows.start, first), min(rows.stop, first + len(grid.rows))
            left, right = max(keys.start, grid.keys.start), min(keys.stop, grid.keys.stop)
            if low >= high or left >= right:
                continue
            own = range(low - rows.start, high - rows.start), range(left - keys.start, right - keys.start)
            start = len(keys) - len(rows)
            found = inner.evaluate(Grid(len(rows), len(keys), start, *own, grid.device))
            if found.dim() == 4 and allowed.dim() == 2:  # heads differ
                allowed = allowed.repeat(1, found.shape[1], 1, 1)
            here = slice(low - first, high - first), slice(left - grid.keys.start, right - grid.keys.start)
            allowed[(..., *here)] = found
        return allowed

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        touched = list(self._touched(first, last))
        full, some = [], []
        for inner, rows, keys in touched:
            start = len(keys) - len(rows) - rows.start
            found = inner.segments(max(first, rows.start) + start, min(last, rows.stop - 1) + start, len(keys))
            some += [range(one.start + keys.start, one.stop + keys.start) for one in found.some]
            if rows.start <= first and last < rows.stop:
                full += [range(one.start + keys.start, one.stop + keys.start) for one in found.full]
        within = range(max(0, k_len))
        return Segments(*(union(range(one.start, min(one.stop, within.stop)) for one in runs) for runs in (full, some)))

    def _touched(self, first: int, last: int) -> Iterator[tuple[Pattern, range, range]]:
        """The documents of these queries: what is seen in each, its queries and its keys."""
        low = max(0, bisect_right(self.q_edges, first) - 1)
        for place in range(low, min(bisect_left(self.q_edges, last + 1), len(self._documents))):
            if self._documents[place][1]:
                yield self._documents[place]

    @cached_property
    def _documents(self) -> tuple[tuple[Pattern, range, range], ...]:
        rows = zip(self.q_edges[:-1], self.q_edges[1:], strict=True)
        keys = zip(self.k_edges[:-1], self.k_edges[1:], strict=True)
        pairs = enumerate(zip(rows, keys, strict=True))
        return tuple((self.inner.for_row(place), range(*own), range(*seen)) for place, (own, seen) in pairs)

    def __str__(self) -> str:
        return f"per_document({self.inner}, <{len(self._documents)} documents>)"
