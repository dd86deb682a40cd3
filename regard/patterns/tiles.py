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
from regard.patterns.row_blocks import EvaluatedBlocks, in_row_blocks

EMPTY, PARTIAL, FULL = range(3)
AT_ONCE = (
    1 << 14
)  # pairs of neighbouring tiles that are evaluated in one call, where tiles are small


@dataclass(frozen=True)
class Tiles:
    """Tiles of `size` x `size` pairs by row of tiles: the columns of full and of partial ones; the others are empty."""

    size: int
    columns: int
    full: tuple[Ranges, ...]
    partial: tuple[Ranges, ...]

    def states(self) -> torch.Tensor:
        """0 for an empty tile, 1 for a partial and 2 for a full one, (rows of tiles, columns of tiles) int8."""
        found = torch.zeros(len(self.full), self.columns, dtype=torch.int8, device="cpu")
        for state, tiles in ((PARTIAL, self.partial), (FULL, self.full)):
            for row, ranges in enumerate(tiles):
                for columns in ranges:
                    found[row, columns.start : columns.stop] = state
        return found

    def counts(self) -> dict[str, int]:
        """How many tiles are empty, partial and full."""
        partial, full = (sum(map(size, tiles)) for tiles in (self.partial, self.full))
        return {
            "empty": len(self.full) * self.columns - partial - full,
            "partial": partial,
            "full": full,
        }

    def __str__(self) -> str:
        words = ", ".join(f"{number} {state}" for state, number in self.counts().items())
        return f"tiles of {self.size} x {self.size}: {words}"


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
        certain = union(_inner(keys, tile, k_len) for keys in block.full)
        unsure = union(
            range(keys.start // tile, -(-keys.stop // tile))
            for keys in (*block.full, *block.partial)
        )
        found: dict[int, list[range]] = {PARTIAL: [], FULL: list(certain)}
        together = max(1, AT_ONCE // (len(block.rows) * tile))
        for run in _near(without(unsure, certain), gap=together - 1):
            for at in range(run.start, run.stop, together):
                keys = range(at * tile, min(k_len, min(at + together, run.stop) * tile))
                for column, state in enumerate(
                    _states(blocks.allowed(block.rows, keys), tile), start=at
                ):
                    if state != EMPTY:
                        found[state].append(range(column, column + 1))
        full.append(union(found[FULL]))
        partial.append(union(found[PARTIAL]))
    return Tiles(tile, columns, tuple(full), tuple(partial))


def _inner(keys: range, tile: int, k_len: int) -> range:
    """Columns of tiles that lie in `keys` entirely."""
    stop = -(-keys.stop // tile) if keys.stop == k_len else keys.stop // tile
    return range(-(-keys.start // tile), max(-(-keys.start // tile), stop))


def _near(runs: Ranges, gap: int) -> Ranges:
    """Runs joined where at most `gap` columns lie between them."""
    wide = union(range(run.start, run.stop + gap) for run in runs)
    return tuple(range(run.start, run.stop - gap) for run in wide)


def _states(allowed: torch.Tensor, tile: int) -> list[int]:
    """The states of neighbouring tiles from their pairs, (rows, keys); the last tile may have fewer keys."""
    missing = -allowed.shape[1] % tile
    some = torch.nn.functional.pad(allowed.any(0), (0, missing), value=False).view(-1, tile).any(1)
    whole = torch.nn.functional.pad(allowed.all(0), (0, missing), value=True).view(-1, tile).all(1)
    return (some.int() + whole.int()).tolist()  # EMPTY, PARTIAL or FULL
