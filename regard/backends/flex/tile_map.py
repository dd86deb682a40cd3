"""A schedule in square tiles: empty, full, or partial with bits; equal partial tiles share their bits.

The kernel reads what is allowed from tables, so it is the same for many patterns: another window or stride needs no
compiling.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F

from regard.backends.schedule import Schedule, joined
from regard.patterns import Pattern
from regard.patterns.grid import Grid
from regard.patterns.ranges import covers
from regard.patterns.row_blocks import EvaluatedBlocks, RowBlock

TILE = 128  # queries and keys of a tile, the size that FlexAttention's kernels use
BIT = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], device="cpu")  # of a byte
FAR = 1 << 30  # a distance without a limit
MOST_RUNS = 8  # a kernel compares the ends of up to so many runs of keys for each query; with more it reads bits
EMPTY, FULL = 0, 1  # the kinds of tiles that need no bits; partial ones are numbered from 2


@dataclass(frozen=True, eq=False)
class TileMap:
    """The kind of each tile; tiles are counted from the first query and the first reachable key.

    kinds: (batch or 1, heads or 1, rows of tiles, columns of tiles) int32.
    bits: (kinds, TILE, TILE // 8) uint8, bit k % 8 of a byte for key k.
    empty_rows: (batch or 1, heads or 1, q_len, 1); None if no row is empty.
    limits: of a band, the least and the largest distance of a key from a query, the first key and one past the last,
        (4,) int32, with queries and keys counted like the tiles; None for a pattern that is no band.
    """

    kinds: torch.Tensor
    bits: torch.Tensor
    empty_rows: torch.Tensor | None
    limits: torch.Tensor | None = None


def tile_map(pattern: Pattern, grid: Grid, batch: int, heads: int) -> TileMap:
    """The tiles of a structured pattern; cached, so that layers with one pattern share the map.

    Patterns that hold a tensor are equal only to themselves and change with each batch. A few of their maps are cached
    separately, so that they do not displace others.

    Args:
        pattern: may differ by batch row and head.
        grid: all queries, and the keys that any of them can reach.
        batch: batch rows.
        heads: query heads.
    """
    cached = _cached_by_value if pattern.by_value else _cached_by_identity
    return cached(pattern, grid, batch, heads)


@torch.inference_mode(False)  # what is remembered may be needed where gradients are
def _tile_map(pattern: Pattern, grid: Grid, batch: int, heads: int) -> TileMap:
    kinds = _Kinds()
    tiles_of_pattern: dict[Pattern, _Tiles] = {}
    kinds_by_row = []
    empty_by_row = []
    for row in _patterns_by_row(pattern, batch, heads):
        for of_head in row:
            if of_head not in tiles_of_pattern:
                tiles_of_pattern[of_head] = _tiles(of_head, grid, kinds)
        tiles = [tiles_of_pattern[of_head] for of_head in row]
        kinds_by_row.append(torch.stack([of_head.kinds for of_head in tiles]))
        empty_by_row.append(torch.stack([of_head.empty_rows for of_head in tiles]))
    empty_rows = torch.stack(empty_by_row)[..., None]
    return TileMap(
        kinds=torch.stack(kinds_by_row),
        bits=torch.stack(kinds.bits),
        empty_rows=empty_rows if empty_rows.any() else None,
        limits=_limits(pattern, grid),
    )


def _limits(pattern: Pattern, grid: Grid) -> torch.Tensor | None:
    band = pattern.band()
    if band is None:
        return None
    assert isinstance(grid.q_start, int)
    first = grid.keys.start
    keys = len(grid.keys)
    shift = grid.q_start - first
    nearest = -FAR if band.left is None else max(-FAR, shift - band.left)
    farthest = FAR if band.right is None else min(FAR, shift + band.right)
    start = 0 if band.start is None else max(0, band.start - first)
    stop = keys if band.stop is None else max(0, min(keys, band.stop - first))
    return torch.tensor([nearest, farthest, start, stop], dtype=torch.int32, device="cpu")


_cached_by_value = lru_cache(maxsize=64)(_tile_map)
_cached_by_identity = lru_cache(maxsize=4)(_tile_map)


def pairs_of_tiles(pattern: Pattern, grid: Grid, batch: int, heads: int) -> int:
    """Pairs of all tiles that may contain an allowed pair, of all batch rows and heads; no pair is evaluated."""
    patterns: list[Pattern] = []
    for row in _patterns_by_row(pattern, batch, heads):
        patterns += row
    pairs = {each: _pairs_of_one(each, grid) for each in set(patterns)}
    copies = batch * heads // len(patterns)
    return copies * sum(pairs[each] for each in patterns)


def _pairs_of_one(pattern: Pattern, grid: Grid) -> int:
    """Pairs of the tiles of one batch row and head."""

    def pairs_of(block: RowBlock) -> int:
        columns = joined(tuple(tiles_of(run.keys, grid.keys) for run in block.runs))
        width = 0
        for run in columns:
            width += len(grid.keys[run.start * TILE : run.stop * TILE])
        return len(block.rows) * width

    pairs = 0
    for block in schedule_of(pattern, grid):
        # A block that repeats moves by one tile each time, so only its last place can reach the last tile of keys,
        # which may be narrower.
        times_before = block.times - 1
        last = block.moved(times_before * TILE)
        pairs += times_before * pairs_of(block) + pairs_of(last)
    return pairs


def schedule_of(pattern: Pattern, grid: Grid) -> Schedule:
    assert isinstance(grid.q_start, int)
    return Schedule(pattern, grid.q_len, grid.k_len, (grid.q_start, grid.q_start), grid.keys, TILE)


def tiles_of(some: range, keys: range) -> range:
    """The columns of tiles that contain a key of a run; tiles begin at the first of `keys`."""
    return range((some.start - keys.start) // TILE, (some[-1] - keys.start) // TILE + 1)


def _patterns_by_row(pattern: Pattern, batch: int, heads: int) -> list[list[Pattern]]:
    """The pattern of each batch row and head; a single entry if all rows, or heads, have the same pattern."""
    rows = batch if pattern.varies_by_row else 1
    heads = heads if pattern.varies_by_head else 1
    by_row = []
    for row in range(rows):
        of_row = pattern.for_row(row)
        by_row.append([of_row.for_head(head).canonical() for head in range(heads)])
    return by_row


@dataclass
class _Kinds:
    """The kinds of tiles so far: the bits of each, and which of its rows have an allowed pair."""

    bits: list[torch.Tensor] = field(default_factory=list)
    has_key: list[torch.Tensor] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for whole in (False, True):
            self.number(torch.full((TILE, TILE), whole, device="cpu"))

    def number(self, allowed: torch.Tensor) -> int:
        """The kind of a tile with these pairs, (TILE or fewer, TILE or fewer); pairs beyond the ends are masked."""
        allowed = F.pad(allowed, (0, TILE - allowed.shape[1], 0, TILE - allowed.shape[0]))
        bits = (allowed.unflatten(-1, (-1, 8)) * BIT).sum(-1).to(torch.uint8)
        content = bits.numpy().tobytes()
        if content not in self._numbers:
            self._numbers[content] = len(self.bits)
            self.bits.append(bits)
            self.has_key.append(allowed.any(-1))
        return self._numbers[content]


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one pattern: kinds (rows of tiles, columns), and which rows are empty."""

    kinds: torch.Tensor
    empty_rows: torch.Tensor


def _tiles(pattern: Pattern, grid: Grid, kinds: _Kinds) -> _Tiles:
    writer = _TileWriter(EvaluatedBlocks(pattern, grid), grid.keys, kinds)
    table = []
    empty_rows = []
    for repeated in schedule_of(pattern, grid):
        for block in repeated.each():
            row, has_key = writer.row_of_tiles(block)
            table.append(row)
            empty_rows.append(~has_key[: len(block.rows)])
    return _Tiles(torch.stack(table), torch.cat(empty_rows))


@dataclass
class _TileWriter:
    """Finds the kinds of tiles of one pattern; blocks that the pattern names alike are numbered once."""

    evaluated: EvaluatedBlocks
    keys: range
    kinds: _Kinds
    _by_name: dict[Hashable, int] = field(default_factory=dict)

    def row_of_tiles(self, block: RowBlock) -> tuple[torch.Tensor, torch.Tensor]:
        """The kinds of a row of tiles, and which of its queries may look at a key."""
        kinds = torch.zeros(-(-len(self.keys) // TILE), dtype=torch.int32, device="cpu")
        has_key = torch.zeros(TILE, dtype=torch.bool, device="cpu")
        for column in self._columns(block):
            kind = self._kind(block, self.keys[column * TILE : (column + 1) * TILE])
            if kind != EMPTY:
                kinds[column] = kind
                has_key |= self.kinds.has_key[kind]
        return kinds, has_key

    def _columns(self, block: RowBlock) -> list[int]:
        """The columns of tiles with a key of a run, each once and in the order of the runs."""
        columns: dict[int, None] = {}
        for run in block.runs:
            columns |= dict.fromkeys(tiles_of(run.keys, self.keys))
        return list(columns)

    def _kind(self, block: RowBlock, keys: range) -> int:
        if len(block.rows) == len(keys) == TILE and covers(block.full, keys):
            return FULL
        allowed = self.evaluated.allowed(block.rows, keys)
        name = self.evaluated.names[block.rows, keys]
        kind = self._by_name[name] if name in self._by_name else self.kinds.number(allowed)
        if name is not None:
            self._by_name[name] = kind
        return kind
