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
from regard.patterns import Grid, Pattern
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
    return (_kept if pattern.by_value else _kept_shortly)(pattern, grid, batch, heads)


@torch.inference_mode(False)  # what is remembered may be needed where gradients are
def _tile_map(pattern: Pattern, grid: Grid, batch: int, heads: int) -> TileMap:
    kinds = _Kinds()
    tiles_of_pattern: dict[Pattern, _Tiles] = {}
    found: list[list[_Tiles]] = []
    for row in _plain(pattern, batch, heads):
        for one in row:
            if one not in tiles_of_pattern:
                tiles_of_pattern[one] = _tiles(one, grid, kinds)
        found.append([tiles_of_pattern[one] for one in row])
    empty_rows = torch.stack([torch.stack([tiles.empty_rows for tiles in row]) for row in found])[
        ..., None
    ]
    return TileMap(
        kinds=torch.stack([torch.stack([tiles.kinds for tiles in row]) for row in found]),
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
    shift = grid.q_start - grid.keys.start
    limits = [
        -FAR if band.left is None else max(-FAR, shift - band.left),
        FAR if band.right is None else min(FAR, shift + band.right),
        0 if band.start is None else max(0, band.start - first),
        len(grid.keys) if band.stop is None else max(0, min(len(grid.keys), band.stop - first)),
    ]
    return torch.tensor(limits, dtype=torch.int32, device="cpu")


_kept = lru_cache(maxsize=64)(_tile_map)
_kept_shortly = lru_cache(maxsize=4)(_tile_map)


def pairs_of_tiles(pattern: Pattern, grid: Grid, batch: int, heads: int) -> int:
    """Pairs of all tiles that may contain an allowed pair, of all batch rows and heads; no pair is evaluated."""
    plain = [one for row in _plain(pattern, batch, heads) for one in row]
    pairs = {one: _pairs_of_one(one, grid) for one in set(plain)}
    return batch * heads // len(plain) * sum(pairs[one] for one in plain)


def _pairs_of_one(pattern: Pattern, grid: Grid) -> int:
    def pairs(block: RowBlock) -> int:
        columns = joined(tuple(tiles_of(run.keys, grid.keys) for run in block.runs))
        return len(block.rows) * sum(
            len(grid.keys[run.start * TILE : run.stop * TILE]) for run in columns
        )

    # A block that repeats moves by one tile each time, so only its last place can reach the last tile of keys, which
    # may be narrower.
    blocks = schedule_of(pattern, grid)
    return sum(
        (one.times - 1) * pairs(one) + pairs(one.moved((one.times - 1) * TILE)) for one in blocks
    )


def schedule_of(pattern: Pattern, grid: Grid) -> Schedule:
    assert isinstance(grid.q_start, int)
    return Schedule(pattern, grid.q_len, grid.k_len, (grid.q_start, grid.q_start), grid.keys, TILE)


def tiles_of(some: range, keys: range) -> range:
    """The columns of tiles that contain a key of a run; tiles begin at the first of `keys`."""
    return range((some.start - keys.start) // TILE, (some[-1] - keys.start) // TILE + 1)


def _plain(pattern: Pattern, batch: int, heads: int) -> list[list[Pattern]]:
    """The pattern of each batch row and head; a single entry if all rows, or heads, have the same pattern."""
    rows = [pattern.for_row(row) for row in range(batch if pattern.varies_by_row else 1)]
    return [
        [row.for_head(head).canonical() for head in range(heads if pattern.varies_by_head else 1)]
        for row in rows
    ]


@dataclass
class _Kinds:
    """The kinds of tiles so far: the bits of each, and its rows with an allowed pair."""

    bits: list[torch.Tensor] = field(default_factory=list)
    looking: list[torch.Tensor] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for whole in (False, True):
            self.number(torch.full((TILE, TILE), whole, device="cpu"))

    def number(self, allowed: torch.Tensor) -> int:
        """The kind of a tile with these pairs, (TILE or fewer, TILE or fewer); pairs beyond the ends are masked."""
        allowed = F.pad(allowed, (0, TILE - allowed.shape[1], 0, TILE - allowed.shape[0]))
        bits = (allowed.unflatten(-1, (-1, 8)) * BIT).sum(-1).to(torch.uint8)
        name = bits.numpy().tobytes()
        if name not in self._numbers:
            self._numbers[name] = len(self.bits)
            self.bits.append(bits)
            self.looking.append(allowed.any(-1))
        return self._numbers[name]


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one pattern: kinds (rows of tiles, columns), and which rows are empty."""

    kinds: torch.Tensor
    empty_rows: torch.Tensor


def _tiles(pattern: Pattern, grid: Grid, kinds: _Kinds) -> _Tiles:
    evaluated = EvaluatedBlocks(pattern, grid)
    numbers: dict[Hashable, int] = {}  # kinds by the pattern's name for equal blocks
    table = []
    empty_rows = []
    for block in (one for blocks in schedule_of(pattern, grid) for one in blocks.each()):
        row = torch.zeros(-(-len(grid.keys) // TILE), dtype=torch.int32, device="cpu")
        looking = torch.zeros(TILE, dtype=torch.bool, device="cpu")
        for column in dict.fromkeys(
            column for run in block.runs for column in tiles_of(run.keys, grid.keys)
        ):
            keys = grid.keys[column * TILE : (column + 1) * TILE]
            place = block.rows, keys
            if len(block.rows) == len(keys) == TILE and covers(block.full, keys):
                kind = FULL
            else:
                allowed = evaluated.allowed(*place)
                name = evaluated.names[place]
                kind = numbers[name] if name in numbers else kinds.number(allowed)
                if name is not None:
                    numbers[name] = kind
            if kind != EMPTY:
                row[column] = kind
                looking |= kinds.looking[kind]
        table.append(row)
        empty_rows.append(~looking[: len(block.rows)])
    return _Tiles(torch.stack(table), torch.cat(empty_rows))
