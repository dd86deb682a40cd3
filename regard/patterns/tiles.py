"""Square tiles of a pattern, without a dense mask.

Row blocks give the keys that are certain. Only the others are evaluated pair by pair, and equal blocks are evaluated
once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import whole
from regard.errors import UnsupportedError
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, size, union, without
from regard.patterns.row_blocks import EvaluatedBlocks, RowBlock, in_row_blocks

EMPTY, PARTIAL, FULL = range(3)
# pairs of neighbouring tiles that are evaluated in one call, where tiles are small
AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Tiles:
    """Tiles of `size` x `size` pairs by row of tiles: the columns of full and of partial ones; the others are empty."""

    size: int
    columns: int
    full: tuple[Ranges, ...]
    partial: tuple[Ranges, ...]

    def states(self) -> torch.Tensor:
        """0 for an empty tile, 1 for a partial and 2 for a full one, (rows of tiles, columns of tiles) int8."""
        states = torch.zeros(len(self.full), self.columns, dtype=torch.int8, device="cpu")
        for state, tiles in ((PARTIAL, self.partial), (FULL, self.full)):
            for row, ranges in enumerate(tiles):
                for columns in ranges:
                    states[row, columns.start : columns.stop] = state
        return states

    def counts(self) -> dict[str, int]:
        """How many tiles are empty, partial and full."""
        partial = sum(map(size, self.partial))
        full = sum(map(size, self.full))
        tiles = len(self.full) * self.columns
        return {"empty": tiles - partial - full, "partial": partial, "full": full}

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {state}" for state, number in self.counts().items())
        return f"tiles of {self.size} x {self.size}: {counts}"


def tiles(pattern: Pattern, q_len: int, k_len: int, tile: int, q_start: int | None = None) -> Tiles:
    """Which tiles are empty, partial or full; a tile at the end is full when all pairs that it has are allowed.

    Raises:
        ArgumentError: a tile smaller than 1.
        UnsupportedError: a pattern that differs by batch row or head; ask `for_row` and `for_head` first.
    """
    tile = whole("tile", tile, 1)
    if pattern.varies_by_head or pattern.varies_by_row:
        raise UnsupportedError(
            f"{pattern} differs by batch row or head; ask for_row(b) or for_head(h) for its tiles"
        )
    grid = Grid.whole(q_len, k_len, q_start)
    blocks = EvaluatedBlocks(pattern, grid)
    columns = -(-k_len // tile)
    full = []
    partial = []
    for block in in_row_blocks(pattern, grid, tile):
        columns_of = _columns_by_state(blocks, block, tile)
        full.append(union(columns_of[FULL]))
        partial.append(union(columns_of[PARTIAL]))
    return Tiles(tile, columns, tuple(full), tuple(partial))


def _columns_by_state(
    blocks: EvaluatedBlocks, block: RowBlock, tile: int
) -> dict[int, list[range]]:
    """The columns of full and of partial tiles in one row of tiles."""
    k_len = blocks.grid.k_len
    certain = union(_inner(keys, tile, k_len) for keys in block.full)
    runs = (*block.full, *block.partial)
    touched = union(range(keys.start // tile, -(-keys.stop // tile)) for keys in runs)
    columns_of: dict[int, list[range]] = {PARTIAL: [], FULL: list(certain)}
    together = max(1, AT_ONCE // (len(block.rows) * tile))
    for run in _near(without(touched, certain), gap=together - 1):
        for first in range(run.start, run.stop, together):
            end = min(first + together, run.stop)
            allowed = blocks.allowed(block.rows, range(first * tile, min(k_len, end * tile)))
            for column, state in enumerate(_states(allowed, tile), start=first):
                if state != EMPTY:
                    columns_of[state].append(range(column, column + 1))
    return columns_of


def _inner(keys: range, tile: int, k_len: int) -> range:
    """Columns of tiles that lie in `keys` entirely."""
    start = -(-keys.start // tile)
    stop = keys.stop // tile
    if keys.stop == k_len:
        stop = -(-keys.stop // tile)  # the last tile may have fewer keys
    return range(start, max(start, stop))


def _near(runs: Ranges, gap: int) -> Ranges:
    """Runs joined where at most `gap` columns lie between them."""
    longer = union(range(run.start, run.stop + gap) for run in runs)
    return tuple(range(run.start, run.stop - gap) for run in longer)


def _states(allowed: torch.Tensor, tile: int) -> list[int]:
    """The states of neighbouring tiles from their pairs, (rows, keys); the last tile may have fewer keys."""
    missing = (0, -allowed.shape[1] % tile)
    any_row = torch.nn.functional.pad(allowed.any(0), missing, value=False)  # (keys,)
    all_rows = torch.nn.functional.pad(allowed.all(0), missing, value=True)
    some = any_row.view(-1, tile).any(1)  # (tiles,)
    every = all_rows.view(-1, tile).all(1)
    return (some.int() + every.int()).tolist()  # EMPTY, PARTIAL or FULL
