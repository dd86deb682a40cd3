"""Patterns of several texts packed into one row: each query looks at keys of its own document."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ShapeError, UnsupportedError
from regard.patterns.algebra import NOTHING, Full
from regard.patterns.band import Reach
from regard.patterns.base import Pattern, truth_of
from regard.patterns.grid import Grid, common_shape
from regard.patterns.held import HOLDS_TENSOR, TensorPattern, at_positions, checked_tensor
from regard.patterns.ranges import Ranges, Segments, common, everything, shifted, union
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class SameDocument(TensorPattern):
    """A query may look at the keys of its own document: `ids[i] == ids[j]`.

    A position outside of `ids` belongs to no document: its row is empty and its key hidden.

    Args:
        ids: whole numbers by position, (length,), or (batch, length) with a row for each batch row. They are copied,
            and the pattern is equal only to itself.

    >>> SameDocument(torch.tensor([7, 7, 3])).dense(3, 3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    ids: torch.Tensor

    no_text = HOLDS_TENSOR

    def __post_init__(self) -> None:
        needs = "a tensor of whole numbers (int64)"
        shapes = "(length,) or (batch, length)"
        ids = checked_tensor(
            "SameDocument's ids", self.ids, (torch.int64, torch.int32), needs, shapes
        )
        if not ids.numel():
            raise ShapeError(f"SameDocument's ids have shape {tuple(ids.shape)}; it needs {shapes}")
        self.hold("ids", ids.to(torch.int64, copy=True))

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.ids.dim() == 2

    @cached_property
    def rows(self) -> tuple[SameDocument, ...]:
        if not self.varies_by_row:
            return (self,)
        return tuple(SameDocument(row) for row in self.ids)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        if self.ids.shape[-1] < k_len:
            raise ShapeError(
                f"SameDocument's ids are for {count_of(self.ids.shape[-1], 'positions')} and the "
                f"call has {count_of(k_len, 'keys')}; "
                f"give an id for every key"
            )
        if self.varies_by_row and batch and self.ids.shape[0] != batch:
            raise ShapeError(
                f"SameDocument's ids have {count_of(len(self.ids), 'rows')} but the batch has {batch}"
            )

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        of_query, query_known = at_positions(self.ids, q_pos)
        of_key, key_known = at_positions(self.ids, k_pos)
        return (of_query == of_key) & query_known & key_known

    def settled(self, queries: range | None, k_len: int) -> Pattern:
        if queries is None or not 0 <= queries.start <= queries.stop <= self.ids.shape[-1]:
            return self
        ids = self.ids[..., : max(queries.stop, k_len)]
        return Full() if bool((ids == ids[..., :1]).all()) else self

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        if self.varies_by_row:
            return super().segments(first, last, k_len)
        starts, ids, places = self._documents
        length = self.ids.shape[-1]
        low = max(0, first)
        high = min(last, length - 1)
        if high < low:
            return Segments((), ())
        touched = set(ids[bisect_right(starts, low) - 1 : bisect_left(starts, high + 1)])
        runs = union(chain.from_iterable(places[document] for document in touched))
        some = common(runs, everything(min(k_len, length)))
        one_document = len(touched) == 1 and (low, high) == (first, last)
        return Segments(some if one_document else (), some)

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        if residue >= self.ids.shape[-1]:
            return NOTHING
        if (stride, residue) not in self._lattices:
            self._lattices[stride, residue] = SameDocument(self.ids[..., residue::stride])
        return self._lattices[stride, residue]

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

    def __str__(self) -> str:
        return f"same_document(<{' x '.join(map(str, self.ids.shape))} ids>)"


def document_ids(pattern: Pattern) -> tuple[torch.Tensor, ...]:
    """The ids by which a pattern separates documents, of each of its parts that does so.

    >>> from regard.patterns import Causal
    >>> len(document_ids(Causal() & SameDocument(torch.tensor([7, 7, 3]))))
    1
    """
    return tuple(part.ids for part in pattern.walk() if isinstance(part, SameDocument))


def beginnings(pattern: Pattern, batch: int, positions: range) -> torch.Tensor | None:
    """Where documents begin among these positions, (batch, positions); None for a pattern without documents.

    Raises:
        UnsupportedError: a document that comes again after another one.
    """
    begins = None
    for ids in document_ids(pattern):
        seen = ids[None] if ids.dim() == 1 else ids
        seen = seen[:, : positions.stop].expand(batch, positions.stop)
        changes = torch.nn.functional.pad(seen[:, 1:] != seen[:, :-1], (1, 0), value=True)
        in_order = seen.sort(-1).values
        distinct = (in_order[:, 1:] != in_order[:, :-1]).sum(-1) + 1
        if bool((changes.sum(-1) != distinct).any()):
            raise UnsupportedError(
                "a document comes again after another one, and a state keeps the memory of the last document alone; "
                "give each document positions side by side"
            )
        part = changes[:, positions.start :]
        begins = part if begins is None else begins | part
    return begins


def _of_inner(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name))


@dataclass(frozen=True)
class PerDocument(Pattern):
    """A query may look at the keys of its own document that `inner` allows, with positions from the document's start.

    In each document the last query is aligned with the last key. Batch row d of the inner pattern is for document d.

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

    no_text = "attention makes it of nested tensors"

    by_value = _of_inner("by_value")
    structured = _of_inner("structured")
    by_numbers = _of_inner("by_numbers")
    varies_by_head = _of_inner("varies_by_head")

    def for_head(self, head: int) -> Pattern:
        if not self.varies_by_head:
            return self
        return PerDocument(self.inner.for_head(head), self.q_edges, self.k_edges)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for rows, keys in {(len(rows), len(keys)) for _, rows, keys in self._documents}:
            self.inner.check(len(self._documents), heads, rows, keys)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The truth for positions in the packed row, if the inner pattern does not depend on the number of keys."""
        shape = common_shape(q_pos.shape, k_pos.shape)
        allowed = torch.zeros(shape, dtype=torch.bool, device=k_pos.device)
        for inner, rows, keys in self._documents:
            query_inside = (q_pos >= rows.start) & (q_pos < rows.stop)
            key_inside = (k_pos >= keys.start) & (k_pos < keys.stop)
            first = len(keys) - len(rows) - rows.start
            allowed = allowed | (
                query_inside & key_inside & truth_of(inner, q_pos + first, k_pos - keys.start)
            )
        return allowed

    def reach(self, layers: int = 1) -> Reach:
        return (self.inner if self.q_edges == self.k_edges else super()).reach(layers)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        assert isinstance(grid.q_start, int)
        first = grid.q_start + grid.rows.start
        allowed = torch.zeros(len(grid.rows), len(grid.keys), dtype=torch.bool, device=grid.device)
        for inner, rows, keys in self._touched(first, first + len(grid.rows) - 1):
            low = max(rows.start, first)
            high = min(rows.stop, first + len(grid.rows))
            left = max(keys.start, grid.keys.start)
            right = min(keys.stop, grid.keys.stop)
            if low >= high or left >= right:
                continue
            inner_rows = range(low - rows.start, high - rows.start)
            inner_keys = range(left - keys.start, right - keys.start)
            start = len(keys) - len(rows)
            inner_grid = Grid(len(rows), len(keys), start, inner_rows, inner_keys, grid.device)
            block = inner.evaluate(inner_grid)
            if block.dim() == 4 and allowed.dim() == 2:  # heads differ
                allowed = allowed.repeat(1, block.shape[1], 1, 1)
            columns = slice(left - grid.keys.start, right - grid.keys.start)
            allowed[..., low - first : high - first, columns] = block
        return allowed

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        full: list[range] = []
        some: list[range] = []
        for inner, rows, keys in self._touched(first, last):
            start = len(keys) - len(rows) - rows.start
            inner_first = max(first, rows.start) + start
            inner_last = min(last, rows.stop - 1) + start
            inside = inner.segments(inner_first, inner_last, len(keys))
            some += [shifted(run, keys.start) for run in inside.some]
            if rows.start <= first and last < rows.stop:
                full += [shifted(run, keys.start) for run in inside.full]
        within = everything(k_len)
        return Segments(common(union(full), within), common(union(some), within))

    def _touched(self, first: int, last: int) -> Iterator[tuple[Pattern, range, range]]:
        """The documents of these queries: the inner pattern, the queries and the keys of each."""
        low = max(0, bisect_right(self.q_edges, first) - 1)
        for place in range(low, min(bisect_left(self.q_edges, last + 1), len(self._documents))):
            if self._documents[place][1]:
                yield self._documents[place]

    @cached_property
    def _documents(self) -> tuple[tuple[Pattern, range, range], ...]:
        """The inner pattern, the queries and the keys of each document."""
        rows = [range(start, stop) for start, stop in pairwise(self.q_edges)]
        keys = [range(start, stop) for start, stop in pairwise(self.k_edges)]
        inner = [self.inner.for_row(document) for document in range(len(rows))]
        return tuple(zip(inner, rows, keys, strict=True))

    def __str__(self) -> str:
        return f"per_document({self.inner}, <{count_of(len(self._documents), 'documents')}>)"


@dataclass(frozen=True, eq=False)
class PackedDocuments(TensorPattern):
    """The same as `PerDocument`, with ends in tensors: in a graph, where their numbers are not known.

    Args:
        inner: the pattern within a document, or its text, which a graph cannot read.
        q_ends: where documents start among the packed queries, and where the last one ends; (documents + 1,), int64.
        k_ends: likewise among the packed keys.
        ids: the document of each position, for mechanisms that know documents by `SameDocument` alone.

    >>> from regard.patterns import Causal
    >>> ends = torch.tensor([0, 2, 3])
    >>> PackedDocuments(Causal(), ends, ends).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    inner: Pattern | str
    q_ends: torch.Tensor
    k_ends: torch.Tensor
    ids: torch.Tensor | None = None

    no_text = HOLDS_TENSOR

    def __post_init__(self) -> None:
        self.hold("q_ends", self.q_ends)
        self.hold("k_ends", self.k_ends)

    @classmethod
    def read(cls, reader: Any) -> PackedDocuments:
        reader.need("(")
        inner = reader.item()
        reader.need(",")
        q_ends = reader.value()
        reader.need(",")
        k_ends = reader.value()
        reader.need(")")
        return cls(inner, q_ends, k_ends)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The truth for positions in the packed row, if the inner pattern does not depend on the number of keys."""
        inner = self.inner
        assert isinstance(inner, Pattern)
        if inner.batch_rows > 1:
            raise UnsupportedError(
                f"{inner} differs between documents, and their number is not known in this program; call "
                f"attention_varlen outside of it"
            )
        of_query = document_numbers(self.q_ends, q_pos)
        of_key = document_numbers(self.k_ends, k_pos)
        known = (of_query == of_key) & (q_pos >= 0) & (q_pos < self.q_ends[-1])
        last = self.q_ends.shape[0] - 2
        document = of_query.clamp(0, last)
        queries = self.q_ends[document + 1] - self.q_ends[document]
        keys = self.k_ends[document + 1] - self.k_ends[document]
        inner_query = q_pos - self.q_ends[document] + keys - queries
        inner_key = k_pos - self.k_ends[of_key.clamp(0, last)]
        return known & truth_of(inner, inner_query, inner_key)

    def settled(self, queries: range | None, k_len: int) -> Pattern:
        assert isinstance(self.inner, Pattern)
        q_edges = tuple(self.q_ends.tolist())
        k_edges = tuple(self.k_ends.tolist())
        if queries is not None:
            check_edges("cu_seqlens_q", q_edges, "q", len(queries))
        check_edges("cu_seqlens_k", k_edges, "k", k_len)
        return PerDocument(self.inner.canonical(), q_edges, k_edges)

    def __str__(self) -> str:
        return f"packed_documents({self.inner}, <{count_of(len(self.q_ends) - 1, 'documents')}>)"


def document_numbers(ends: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The document of each position, counted from 0; ends: where each starts, and where the last ends.

    By comparisons alone, which every runtime knows.

    >>> document_numbers(torch.tensor([0, 2, 2, 3]), torch.arange(3)).tolist()
    [0, 0, 2]
    """
    return (positions[..., None] >= ends).sum(-1) - 1


def check_edges(name: str, edges: Sequence[int], of: str, length: int) -> None:
    """Raise a ShapeError unless these are where documents start, and where the last ends, among so many positions."""
    if edges[0] or edges[-1] != length or list(edges) != sorted(edges):
        raise ShapeError(
            f"{name} goes from {edges[0]} to {edges[-1]}; it begins at 0, never falls, and ends at {length}, the "
            f"positions of {of}"
        )
