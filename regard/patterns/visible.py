"""Which keys some query may look at, and which queries may look at no key, without a dense mask."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce

import torch

from regard.errors import UnsupportedError
from regard.patterns.algebra import Both, Either, band_and_rest, both
from regard.patterns.arguments import runs
from regard.patterns.band import EVERY_PAIR
from regard.patterns.base import Pattern
from regard.patterns.chosen import Chosen
from regard.patterns.grid import (
    Grid,
    four_axes,
    grids_of_rows,
    marked,
    side_by_side,
    visible_in_band,
)
from regard.patterns.per_head import PerHead
from regard.patterns.ranges import Ranges, covers, union, without
from regard.patterns.row_blocks import EvaluatedBlocks, in_row_blocks


def visible_keys(pattern: Pattern, grid: Grid) -> torch.Tensor | None:
    """Keys that some query of the grid may look at: None for all, else booleans (batch or 1, heads or 1, keys).

    >>> from regard.patterns import CausalWindow
    >>> visible_keys(CausalWindow(2), Grid.whole(1, 4)).int().tolist()
    [[[0, 0, 1, 1]]]
    """
    if isinstance(pattern, Both):
        return _visible_in_both(pattern, grid)
    if isinstance(pattern, Either):
        return _visible_in_either(pattern, grid)
    if isinstance(pattern, PerHead):
        return side_by_side([visible_keys(part, grid) for part in pattern.by_head], grid, dim=1)
    if isinstance(pattern, Chosen):
        # Alone, its lists hold for any positions of the rows, those that differ by batch row included.
        return pattern.visible_within(EVERY_PAIR, replace(grid, q_start=0))
    return _visible(pattern, grid)


def _visible_in_both(pattern: Both, grid: Grid) -> torch.Tensor | None:
    """The keys that are visible in all parts: those that are the same for every query only remove keys."""
    band, rest = band_and_rest(pattern.parts)
    if len(rest) == 1 and isinstance(rest[0], Chosen):
        visible = rest[0].visible_within(band, grid)
        if visible is not None:
            return visible
    query_free = [part for part in pattern.parts if part.query_free]
    others = [part for part in pattern.parts if not part.query_free]
    if pattern.band() is not None or not query_free or not others or not len(grid.rows):
        return _visible(pattern, grid)
    visible = visible_keys(reduce(both, others), grid)
    for part in query_free:
        keys = visible_keys(part, grid)
        if keys is not None:
            visible = keys if visible is None else visible & keys
    return visible


def _visible_in_either(pattern: Either, grid: Grid) -> torch.Tensor | None:
    visible = torch.zeros(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    for part in pattern.parts:
        keys = visible_keys(part, grid)
        if keys is None:
            return None
        visible = visible | keys
    return visible


def _visible(pattern: Pattern, grid: Grid) -> torch.Tensor | None:
    """The visible keys by the structure of the pattern where it has one, else pair by pair."""
    band = pattern.band()
    if band is not None and not grid.per_batch:
        return visible_in_band(band, grid)
    if pattern.query_free and len(grid.rows):
        first_row = grid.block(grid.rows[:1], grid.keys)
        return four_axes(pattern.evaluate(first_row))[:, :, 0]
    if pattern.structured and not grid.per_batch:
        if pattern.varies_by_row:
            rows = [pattern.for_row(row) for row in range(pattern.batch_rows)]
            return side_by_side([visible_keys(row, grid) for row in rows], grid, dim=0)
        if pattern.varies_by_head and pattern.heads:
            heads = [pattern.for_head(head) for head in range(pattern.heads)]
            return side_by_side([visible_keys(head, grid) for head in heads], grid, dim=1)
        if not pattern.varies_by_head:
            return marked(seen_keys(pattern, grid), grid)
    visible = torch.zeros(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    for block in grids_of_rows(grid):
        allowed = four_axes(pattern.evaluate(block))
        visible = visible | allowed.any(-2)  # (batch or 1, heads or 1, keys)
    return visible


def seen_keys(pattern: Pattern, grid: Grid) -> Ranges:
    """Keys of the grid that some query of it may look at; remembered for patterns that compare by value."""
    assert isinstance(grid.q_start, int)
    find = _remembered_keys if pattern.by_value else _find_seen_keys
    return find(pattern, grid.q_start, grid.q_len, grid.k_len, grid.rows, grid.keys)


def _find_seen_keys(
    pattern: Pattern, q_start: int, q_len: int, k_len: int, rows: range, keys: range
) -> Ranges:
    grid = Grid(q_len, k_len, q_start, rows, keys, torch.device("cpu"))
    blocks = EvaluatedBlocks(pattern, grid)
    seen: Ranges = ()
    for block in in_row_blocks(pattern, grid):
        seen = union([*seen, *block.full])
        for unsure in without(block.partial, seen):
            columns = blocks.allowed(block.rows, unsure).any(0).nonzero().flatten().tolist()
            keys_seen = [unsure[column] for column in columns]
            seen = union([*seen, *runs(keys_seen)])
        if covers(seen, keys):
            break
    return seen


_remembered_keys = lru_cache(maxsize=64)(_find_seen_keys)


def empty_rows(pattern: Pattern, q_len: int, k_len: int, q_start: int | None = None) -> Ranges:
    """The rows of queries that may look at no key.

    Raises:
        UnsupportedError: a pattern that differs by batch row or head; ask `for_row` and `for_head` first.

    >>> from regard.patterns import Causal
    >>> empty_rows(Causal(), 4, 2)
    (range(0, 2),)
    """
    if pattern.varies_by_head or pattern.varies_by_row:
        raise UnsupportedError(
            f"{pattern} differs by batch row or head; ask for_row(b) or for_head(h) for its rows"
        )
    grid = Grid.whole(q_len, k_len, q_start)
    blocks = EvaluatedBlocks(pattern, grid)
    rows: list[range] = []
    for block in in_row_blocks(pattern, grid):
        if block.full:
            continue
        empty = torch.ones(len(block.rows), dtype=torch.bool, device="cpu")
        for keys in block.partial:
            empty &= ~blocks.allowed(block.rows, keys).any(-1)
        for row in empty.nonzero().flatten().tolist():
            rows.append(range(block.rows[row], block.rows[row] + 1))
    return union(rows)
