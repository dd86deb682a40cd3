"""Keys that a tensor lists, for each query or in blocks, as learned selection gives (NSA, MoBA, lightning indexer)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from regard.arguments import check_fields, count_of
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.exporting import exporting
from regard.patterns.arguments import at_least_one
from regard.patterns.band import Band, tighter
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid, four_axes, true_runs
from regard.patterns.held import (
    HOLDS_TENSOR,
    TensorPattern,
    checked_tensor,
    in_words,
    new_serial,
)
from regard.patterns.one_call import RowsOfOneCall
from regard.patterns.ranges import Ranges, Segments, hull
from regard.reprs import brief

# Blocks of so many keys or more are computed as runs, smaller ones by evaluating pairs.
LEAST_LISTED = 16


class Chosen(RowsOfOneCall, TensorPattern, enrol=False):
    """Each block of rows may look at the blocks of keys that a tensor lists for it.

    Rows count the queries of the call. Only `placed` tells the position of the first one; after that, keys are listed
    without evaluating pairs.
    """

    compares_positions = False
    takes_cache = False
    no_text = HOLDS_TENSOR
    block: int = 1  # keys
    query_block: int = 1  # rows
    _first: ClassVar[int | None] = None  # the position of row 0
    _group: ClassVar[int] = 1  # query heads that share one list
    _field: ClassVar[str]  # the name of the field that holds the tensor

    @property
    def listed(self) -> torch.Tensor:
        """(batch or 1, lists of heads, row blocks, n)."""
        return getattr(self, self._field)

    def _like(
        self, listed: torch.Tensor, first: int | None, group: int = 1, rows: int | None = None
    ) -> Chosen:
        """The same with another tensor, which is not copied, and so many rows of a block."""
        same = object.__new__(type(self))
        fields = {
            self._field: listed,
            "block": self.block,
            "query_block": rows or self.query_block,
            "serial": new_serial(),
            "_first": first,
            "_group": group,
        }
        for name, value in fields.items():
            object.__setattr__(same, name, value)
        return same

    def _hold(self, listed: Any) -> None:
        name = f"{type(self).__name__}'s {self._field}"
        needs = "a tensor of whole numbers (int64), -1 for none"
        shape = "(batch or 1, heads or 1, rows, n)"
        listed = checked_tensor(name, listed, (torch.int64, torch.int32), needs, shape, axes=(4,))
        self.hold(self._field, listed.to(torch.int64, copy=True))

    @property
    def structured(self) -> bool:  # type: ignore[override]
        return self._first is not None

    @property
    def varies_by_head(self) -> bool:  # type: ignore[override]
        return self.listed.shape[1] > 1

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return self.listed.shape[0] > 1

    @property
    def heads(self) -> int | None:
        return self.listed.shape[1] * self._group if self.varies_by_head else None

    @property
    def batch_rows(self) -> int:
        return self.listed.shape[0]

    @cached_property
    def _parts(self) -> dict[Any, Chosen]:
        return {}

    def for_row(self, row: int) -> Pattern:
        if not self.varies_by_row:
            return self
        return self._part(slice(row, row + 1), slice(None))

    def for_head(self, head: int) -> Pattern:
        if not self.varies_by_head:
            return self
        number = head // self._group
        return self._part(slice(None), slice(number, number + 1))

    def _part(self, rows: slice, lists: slice) -> Chosen:
        """A part, always the same object, so that heads that share a list have equal patterns."""
        name = rows.start, lists.start
        if name not in self._parts:
            group = self._group if lists == slice(None) else 1
            part = self._like(self.listed[rows, lists], self._first, group)
            if self.block >= LEAST_LISTED:  # the lists of all parts are sorted at once
                part.__dict__["ascending"] = self.ascending[rows, lists]
            self._parts[name] = part
        return self._parts[name]

    def of_heads(self, heads: range, of: int) -> Pattern:
        if not self.varies_by_head:
            return self
        heads_of_list = of // self.listed.shape[1]
        lists = [head // heads_of_list for head in heads]
        return self._like(self.listed[:, lists], self._first)

    def of_queries(self, rows: range, k_len: int) -> Pattern:
        positions = torch.arange(rows.start, rows.stop, device=self.listed.device)
        row_blocks = positions // self.query_block
        return self._like(self.listed[:, :, row_blocks], None, self._group, rows=1)

    def placed(self, first: int | None, heads: int) -> Pattern:
        lists = self.listed.shape[1]
        group = heads // lists if lists > 1 else 1
        return self._like(self.listed, first, group)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """Outside of a call, row 0 has position 0."""
        listed = self.listed.to(k_pos.device)
        row = q_pos - (self._first or 0)
        has_list = (row >= 0) & (row < listed.shape[2] * self.query_block)
        row_block = (row // self.query_block).clamp(0, max(listed.shape[2] - 1, 0))
        has_list = four_axes(has_list)
        row_block = four_axes(row_block)
        block = four_axes(k_pos // self.block)
        batch = torch.arange(listed.shape[0], device=listed.device).view(-1, 1, 1, 1)
        lists = torch.arange(listed.shape[1], device=listed.device).view(-1, 1, 1)
        allowed = torch.zeros_like(has_list & (block == block))  # booleans of the broadcast shape
        listed_blocks = listed.shape[3] if listed.shape[2] else 0
        for n in range(listed_blocks):
            allowed = allowed | (has_list & (listed[batch, lists, row_block, n] == block))
        allowed = self._of_heads(allowed)
        if self.varies_by_head or self.varies_by_row or q_pos.dim() > 2:
            return allowed
        return allowed[0, 0]

    def evaluate(self, grid: Grid) -> torch.Tensor:
        if exporting():
            raise UnsupportedError(
                f"{self} is not exported to other runtimes, since its lists are for one number of queries; give "
                f"Explicit(mask)"
            )
        rows, keys = grid.rows, grid.keys
        blocks = range(keys.start // self.block, -(-keys.stop // self.block))
        row_block = torch.arange(rows.start, rows.stop, device=grid.device) // self.query_block
        low = rows.start // self.query_block
        high = low
        if rows:
            high = min(-(-rows.stop // self.query_block), self.listed.shape[2])
        marks = self._marks(range(low, high), blocks).to(grid.device)
        key_block = torch.arange(keys.start, keys.stop, device=grid.device) // self.block
        allowed = marks[:, :, row_block - low][..., key_block - blocks.start]
        allowed = self._of_heads(allowed)
        return allowed if self.varies_by_head or self.varies_by_row else allowed[0, 0]

    def _of_heads(self, of_lists: torch.Tensor) -> torch.Tensor:
        """What is known of each list, (batch, lists, ...), for each query head."""
        return of_lists if self._group == 1 else of_lists.repeat_interleave(self._group, 1)

    def _marks(self, row_blocks: range, blocks: range) -> torch.Tensor:
        """Whether each block of rows may look at each block of keys, (batch, lists, row blocks, key blocks)."""
        listed = self.listed[:, :, row_blocks.start : row_blocks.stop]
        inside = (listed >= blocks.start) & (listed < blocks.stop)
        columns = torch.where(inside, listed - blocks.start, len(blocks))  # the last for all others
        shape = (*listed.shape[:3], len(blocks) + 1)
        marks = torch.zeros(shape, dtype=torch.bool, device=listed.device)
        return marks.scatter_(3, columns, True)[..., :-1]

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        if self._first is None:
            return super().segments(first, last, k_len)
        low = max(first - self._first, 0)
        high = min(last - self._first, self.listed.shape[2] * self.query_block - 1)
        if high < low:
            return Segments((), ())
        row_blocks = range(low // self.query_block, high // self.query_block + 1)
        marks = self._marks(row_blocks, range(-(-k_len // self.block))).flatten(0, 2)
        some = self._keys_of(true_runs(marks.any(0)), k_len)
        if self.block < LEAST_LISTED:
            # Many short runs would take longer to evaluate than the keys between them.
            return Segments((), (hull(some),) if some else ())
        if (low, high) != (first - self._first, last - self._first):  # the others are empty rows
            return Segments((), some)
        return Segments(self._keys_of(true_runs(marks.all(0)), k_len), some)

    def _keys_of(self, blocks: Ranges, k_len: int) -> Ranges:
        """The keys of runs of blocks."""
        block = self.block
        return tuple(range(run.start * block, min(run.stop * block, k_len)) for run in blocks)

    def key_range(self, first: int, last: int, k_len: int) -> range:
        return range(k_len)  # the listed keys nearly always span about as many

    def visible_within(self, band: Band, grid: Grid) -> torch.Tensor | None:
        """The visible keys of the lists joined with a band by `&`; None where they are found by evaluating pairs."""
        if grid.per_batch or band.is_empty:
            return None
        listed = self.listed.to(grid.device)
        rows = grid.rows
        keys = grid.keys
        first_rows = torch.arange(listed.shape[2], device=grid.device)[:, None] * self.query_block
        first = first_rows.clamp(min=rows.start)
        end = (first_rows + self.query_block).clamp(max=rows.stop)
        stop = tighter(min, keys.stop, band.stop)
        low = (listed * self.block).clamp(min=max(keys.start, band.start or 0))
        high = ((listed + 1) * self.block).clamp(max=stop)
        if band.left is not None:
            low = low.maximum(first + grid.q_start - band.left)
        if band.right is not None:
            high = high.minimum(end + grid.q_start + band.right)
        has_keys = (listed >= 0) & (first < end) & (low < high)
        edges = torch.zeros(*listed.shape[:2], len(keys) + 1, dtype=torch.int32, device=grid.device)
        # A key is visible where more listed blocks have begun than ended; the column behind the keys is for the others.
        for edge, step in ((low, 1), (high, -1)):
            column = (edge - keys.start).where(has_keys, len(keys)).flatten(2)
            edges.scatter_add_(2, column, torch.full_like(column, step, dtype=torch.int32))
        edges[..., -1] = 0
        return self._of_heads(edges.cumsum(2)[..., :-1] > 0)

    @cached_property
    def ascending(self) -> torch.Tensor:
        """The tensor on the CPU with each number once and ascending, -1 in the place of repetitions."""
        listed = self.listed.cpu()
        if not bool((listed[..., 1:] > listed[..., :-1]).all()):
            listed = listed.sort(-1).values
        again = torch.nn.functional.pad(listed[..., 1:] == listed[..., :-1], (1, 0))
        return listed.masked_fill(again, -1)

    def least_pairs(self, first: int, q_len: int, k_len: int, within: Band) -> int:
        """A lower bound of the pairs within a band, from the lists alone; the tensor is read once.

        Counts whole blocks of at least LEAST_LISTED keys; the mean of batch rows and heads that differ.
        """
        if self.block < LEAST_LISTED or self._first is None:
            return 0
        low = self.ascending * self.block  # (batch or 1, lists, row blocks, n)
        first_rows = torch.arange(low.shape[2], device=low.device)[:, None] * self.query_block
        end_rows = (first_rows + self.query_block).clamp(max=q_len)
        stop = tighter(min, k_len, within.stop)
        whole = (low >= max(0, within.start or 0)) & (low + self.block <= stop)
        if within.left is not None:
            whole &= low >= first + end_rows - 1 - within.left
        if within.right is not None:
            whole &= low + self.block - 1 <= first + first_rows + within.right
        pairs = int((whole * (end_rows - first_rows)).sum()) * self.block
        return pairs // (low.shape[0] * low.shape[1])

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        shape = tuple(self.listed.shape)
        name = f"{type(self).__name__}'s {self._field}"
        row_blocks = -(-q_len // self.query_block)
        blocks = -(-k_len // self.block)
        if shape[2] != row_blocks:
            queries = f"{q_len} queries"
            if self.query_block > 1:
                queries += f" in {count_of(row_blocks, 'blocks')} of {self.query_block}"
            raise ShapeError(
                f"{name} {shape} has {count_of(shape[2], 'rows')} and the call has {queries}"
            )
        if batch and shape[0] not in (1, batch):
            raise ShapeError(
                f"{name} {shape} is for {shape[0]} batch rows and the batch has {batch}"
            )
        if heads and heads % shape[1]:
            raise ShapeError(
                f"{name} {shape} has {shape[1]} lists for {count_of(heads, 'query heads')}; give one for all, or one "
                f"for each head or each key/value head"
            )
        low, high = self._extremes
        if low < -1 or high >= blocks:
            wrong = low if low < -1 else high
            what = "keys" if self.block == 1 else f"blocks of {self.block} keys"
            raise ArgumentError(
                f"{name} holds {wrong}, and the call has {blocks} {what}; give 0 and up, or -1 for none"
            )

    @cached_property
    def _extremes(self) -> tuple[int, int]:
        """The least and the largest number that is listed."""
        if not self.listed.numel():
            return -1, -1
        least, most = torch.stack(self.listed.aminmax()).tolist()
        return least, most

    def __str__(self) -> str:
        return f"{self.text_name}({in_words(self.listed, 'numbers')})"


def placed_lists(pattern: Pattern) -> Chosen | None:
    """The pattern, if it lists keys for the rows of a call whose first position is known; else None."""
    if isinstance(pattern, Chosen) and pattern.structured:
        return pattern
    return None


@brief
@dataclass(frozen=True, eq=False)
class ChosenBlocks(Chosen):
    """Each block of queries may look at the blocks of keys that `blocks` lists for it.

    `(j // block) in blocks[b, h, r // query_block]` for the r-th query of the call and the key j. Join it with `&
    Causal()` where the queries of a block must not look at later keys of their own block.

    Args:
        blocks: int64 (batch or 1, heads or 1, query blocks, n), -1 for none; a block that is listed twice counts once.
            There may also be a list for each key/value head, which its query heads share. The tensor is copied, and the
            pattern is equal only to itself.
        block: keys in a block; the last block may be shorter.
        query_block: queries in a block; 1 for a list for each query.

    Source: the selected blocks of Native Sparse Attention, Yuan et al. 2025, section 3.3.2; MoBA, Lu et al. 2025.

    >>> ChosenBlocks(torch.tensor([[[[0, -1], [0, 2]]]]), block=2, query_block=1).dense(2, 6).int().tolist()
    [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1]]
    """

    blocks: torch.Tensor
    block: int = 64  # ty: ignore[incompatible-attribute-override]
    query_block: int = 64  # ty: ignore[incompatible-attribute-override]

    _field = "blocks"

    def __post_init__(self) -> None:
        check_fields(self, block=at_least_one, query_block=at_least_one)
        self._hold(self.blocks)


@brief
@dataclass(frozen=True, eq=False)
class ChosenKeys(Chosen):
    """Each query may look at the keys that `keys` lists for it: `j in keys[b, h, r]` for the r-th query of the call.

    Args:
        keys: int64 (batch or 1, heads or 1, q_len, n), -1 for none; a key that is listed twice counts once. There may
            also be a list for each key/value head. The tensor is copied, and the pattern is equal only to itself.

    Source: the tokens that the lightning indexer of DeepSeek-V3.2-Exp selects, DeepSeek-AI 2025, section 2.1.

    >>> ChosenKeys(torch.tensor([[[[0, 3], [1, -1]]]])).dense(2, 4).int().tolist()
    [[1, 0, 0, 1], [0, 1, 0, 0]]
    """

    keys: torch.Tensor

    _field = "keys"

    def __post_init__(self) -> None:
        self._hold(self.keys)
