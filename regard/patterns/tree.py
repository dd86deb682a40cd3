"""Trees of drafts, whose branches share their first tokens and are verified in one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, ShapeError
from regard.patterns.arguments import on_rows
from regard.patterns.band import Reach
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.held import (
    HOLDS_TENSOR,
    TensorPattern,
    at_positions,
    checked_tensor,
    in_words,
    new_serial,
)
from regard.patterns.one_call import RowsOfOneCall
from regard.patterns.ranges import Segments, everything
from regard.reprs import brief


@brief
@dataclass(frozen=True, eq=False)
class Tree(RowsOfOneCall, TensorPattern):
    """Row r of the call is a node of a tree: it may look at all keys before the tree, its ancestors and itself.

    The key of a node is the one at its own position, so without q_start the last n keys are those of the n nodes.
    Layers take it with a cache, whose entries are the keys before the tree; there `positions=cache.length +
    tree.depths` rotates each node to its place in its branch. Patterns that it is joined with compare places in the
    call, not depths.

    Args:
        parents: int64 (n,), or (batch, n) with a tree for each batch row: the row of each node's parent, which comes
            before its child, or -1 for a root. The tensor is copied, and the pattern is equal only to itself.

    Source: SpecInfer, Miao et al. 2023, section 4 (tree attention).

    >>> Tree(torch.tensor([-1, 0, 0, 2])).dense(4, 5).int().tolist()  # one key before the tree
    [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    """

    parents: torch.Tensor

    no_text = HOLDS_TENSOR
    _first: ClassVar[int | None] = None  # the position of row 0 of the whole tree
    _rows: ClassVar[range]  # which rows of the whole tree are those of the call

    def __post_init__(self) -> None:
        needs = "whole numbers (int64): the row of each node's parent, -1 for a root"
        parents = checked_tensor(
            "Tree's parents", self.parents, (torch.int64, torch.int32), needs, "(n,) or (batch, n)"
        )
        trees = parents if parents.dim() == 2 else parents[None]
        for tree in trees.tolist():
            for node, parent in enumerate(tree):
                if not -1 <= parent < node:
                    raise ArgumentError(
                        f"Tree's node {node} has parent {parent}; a parent comes before its child, so give one from 0 "
                        f"to the row before the child's, or -1 for a root"
                    )
        self.hold("parents", parents.to(torch.int64, copy=True))
        object.__setattr__(self, "_rows", range(parents.shape[-1]))

    @property
    def depths(self) -> torch.Tensor:
        """The number of ancestors of each node, int64 of the shape of the parents."""
        depths = torch.zeros_like(self.parents)
        for node in range(depths.shape[-1]):
            parent = self.parents[..., node : node + 1]
            above = depths.gather(-1, parent.clamp(min=0)) + 1
            depths[..., node : node + 1] = above.where(parent >= 0, 0)
        return depths

    @cached_property
    def _spans(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of the nodes, branch by branch, and one past that of each node's last descendant."""
        trees = (self.parents if self.varies_by_row else self.parents[None]).tolist()
        numbers, ends = zip(*map(_numbered, trees), strict=True)
        first = torch.tensor(numbers).to(self.parents)
        end = torch.tensor(ends).to(self.parents)
        return first.view_as(self.parents), end.view_as(self.parents)

    def _like(self, parents: torch.Tensor, first: int | None, rows: range) -> Tree:
        """The same for other rows or at another position; nothing is copied."""
        same = object.__new__(type(self))
        fields = {"parents": parents, "serial": new_serial(), "_first": first, "_rows": rows}
        for name, value in fields.items():
            object.__setattr__(same, name, value)
        if parents is self.parents:
            same.__dict__["_spans"] = self._spans
        return same

    @property
    def structured(self) -> bool:  # type: ignore[override]
        return self._first is not None

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.parents.dim() == 2

    @cached_property
    def rows(self) -> tuple[Pattern, ...]:
        if not self.varies_by_row:
            return (self,)
        return tuple(self._like(tree, self._first, self._rows) for tree in self.parents)

    def of_queries(self, rows: range, k_len: int) -> Pattern:
        return self._like(self.parents, self._first, self._rows[rows.start : rows.stop])

    def placed(self, first: int | None, heads: int) -> Pattern:
        of_tree = None if first is None else first - self._rows.start
        return self._like(self.parents, of_tree, self._rows)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """Outside of a call, the first row has position 0."""
        first = -self._rows.start if self._first is None else self._first
        return self._pairs(q_pos, k_pos, first)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        start = on_rows(grid.q_start, grid.device)
        allowed = self._pairs(grid.q_pos, grid.k_pos, start - self._rows.start)
        return allowed.expand(*allowed.shape[:-2], *grid.shape)

    def _pairs(
        self, q_pos: torch.Tensor, k_pos: torch.Tensor, first: int | torch.Tensor
    ) -> torch.Tensor:
        """Where the query is inside the tree: whether the key is before it, or that of an ancestor or of itself."""
        if not self.parents.shape[-1]:
            return (q_pos < q_pos) & (k_pos < k_pos)
        numbers, ends = self._spans
        of_query, query_inside = at_positions(numbers, q_pos - first)
        of_key, key_inside = at_positions(numbers, k_pos - first)
        end, _ = at_positions(ends, k_pos - first)
        descends = (of_key <= of_query) & (of_query < end)
        return query_inside & ((k_pos < first) | (key_inside & descends))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        if self._first is None:
            return super().segments(first, last, k_len)
        end = self._first + self._rows.stop
        if last < self._first or first >= end:
            return Segments((), ())
        some = everything(min(last + 1, k_len, end))
        if first < self._first or last >= end:  # some of the queries are outside of the tree
            return Segments((), some)
        return Segments(everything(min(self._first, k_len)), some)

    def reach(self, layers: int = 1) -> Reach:
        return Reach(None, 0)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        nodes = len(self._rows)
        if nodes != q_len:
            raise ShapeError(
                f"Tree has {count_of(nodes, 'nodes')} and the call has {count_of(q_len, 'queries')}; give one for each"
            )
        if self.varies_by_row and batch and len(self.parents) != batch:
            raise ShapeError(
                f"Tree has {count_of(len(self.parents), 'batch rows')} and the batch has {batch}"
            )

    def __str__(self) -> str:
        return f"tree({in_words(self.parents, 'parents')})"


def _numbered(parents: list[int]) -> tuple[list[int], list[int]]:
    """Numbers of nodes such that a node and its descendants are a run, and the end of each run.

    >>> _numbered([-1, 0, 0, 1])
    ([0, 1, 3, 2], [4, 3, 4, 3])
    """
    sizes = [1] * len(parents)
    roots = 0
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    numbers: list[int] = []
    free: list[int] = []  # the next number inside the run of each node
    for parent, size in zip(parents, sizes, strict=True):
        number = roots if parent < 0 else free[parent]
        if parent < 0:
            roots += size
        else:
            free[parent] += size
        numbers.append(number)
        free.append(number + 1)
    return numbers, [number + size for number, size in zip(numbers, sizes, strict=True)]
