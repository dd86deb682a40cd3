"""A pattern as tiles: which are seen whole, and bit by bit those that are seen in part; equal ones are kept once.

A kernel that reads bits is the same for every pattern, so that another window or stride compiles nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F

from regard.patterns import Grid, Pattern
from regard.patterns.counts import Count
from regard.patterns.ranges import Ranges, covers, union
from regard.patterns.row_blocks import Answers as Blocks
from regard.patterns.row_blocks import RowBlock as Strip
from regard.patterns.row_blocks import in_row_blocks as strips
from regard.patterns.row_blocks import row_block_at as strip_at
from regard.patterns.survey import Budget, SpentError, estimated, look_cost, turning_rows

TILE = 128  # queries and keys of a tile: what FlexAttention's kernels are made for
BIT = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], device="cpu")  # of a byte
EMPTY, FULL = 0, 1  # the kinds of tiles that need no bits; those seen in part are numbered from 2


@dataclass(frozen=True, eq=False)
class TileMap:
    """Which kind of tile stands where, counted from the first query and the first reachable key.

    kinds: (batch or 1, heads or 1, rows of tiles, columns of tiles) int32.
    bits: (kinds, TILE, TILE // 8) uint8, bit k % 8 of a byte for key k.
    lonely: (batch or 1, heads or 1, q_len, 1), True = this query sees no key; None where every query sees one.
    pairs, kept: of all batch rows and heads, the pairs in tiles that are not empty and the allowed ones among them.
    """

    kinds: torch.Tensor
    bits: torch.Tensor
    lonely: torch.Tensor | None
    pairs: int
    kept: int


def tile_map(pattern: Pattern, grid: Grid, batch: int, heads: int) -> TileMap:
    """The tiles of a structured pattern; remembered, so that layers with one pattern ask once.

    A pattern equal only to itself is needed while its batch is: a few such maps are kept, and displace no others.

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
    sheets: dict[Pattern, _Sheet] = {}
    found: list[list[_Sheet]] = []
    for line in _plain(pattern, batch, heads):
        for one in line:
            if one not in sheets:
                sheets[one] = _sheet(one, grid, kinds)
        found.append([sheets[one] for one in line])
    lonely = torch.stack([torch.stack([~sheet.alive for sheet in line]) for line in found])[..., None]
    times = batch * heads // (len(found) * len(found[0]))
    return TileMap(
        kinds=torch.stack([torch.stack([sheet.kinds for sheet in line]) for line in found]),
        bits=torch.stack(kinds.bits),
        lonely=lonely if lonely.any() else None,
        pairs=times * sum(sheet.pairs for line in found for sheet in line),
        kept=times * sum(sheet.kept for line in found for sheet in line),
    )


_kept = lru_cache(maxsize=64)(_tile_map)
_kept_shortly = lru_cache(maxsize=4)(_tile_map)


def most_pairs(pattern: Pattern, grid: Grid, batch: int, heads: int, looks: int | None = None) -> Count:
    """Pairs of all tiles that may hold an allowed one, of all batch rows and heads; no pair is looked at.

    With a limit to the `looks` at rows of tiles, more of them are estimated.
    """
    known: dict[Pattern, Count] = {}
    plain = _plain(pattern, batch, heads)
    for one in {one for line in plain for one in line}:
        known[one] = _most_pairs(one, grid, Budget(looks))
    found = [known[one] for line in plain for one in line]
    times = batch * heads // (len(plain) * len(plain[0]))
    return Count(times * sum(one.pairs for one in found), all(one.exact for one in found))


def _most_pairs(pattern: Pattern, grid: Grid, budget: Budget) -> Count:
    def pairs(strip: Strip) -> int:
        return len(strip.rows) * sum(map(len, _touched((*strip.full, *strip.partial), grid.keys)))

    total = 0
    try:
        for strip in strips(pattern, grid, TILE):
            budget.spend(len(strip.full) + len(strip.partial))
            total += pairs(strip)
    except SpentError:
        assert isinstance(grid.q_start, int)
        turns = (row // TILE for row in turning_rows(pattern, grid.q_start, grid.q_len, grid.k_len))
        middle = strip_at(pattern, grid, grid.q_len // 2, TILE)
        cost = look_cost(len(middle.full) + len(middle.partial))
        look = lambda at: (pairs(strip_at(pattern, grid, at * TILE, TILE)),)  # noqa: E731
        return Count(sum(estimated(-(-grid.q_len // TILE), look, turns, cost)), exact=False)
    return Count(total)


def _plain(pattern: Pattern, batch: int, heads: int) -> list[list[Pattern]]:
    """The pattern of each batch row and head; one row, one head, where they are alike."""
    rows = [pattern.for_row(row) for row in range(batch if pattern.varies_by_row else 1)]
    return [[row.for_head(head).canonical() for head in range(heads if pattern.varies_by_head else 1)] for row in rows]


@dataclass
class _Kinds:
    """Every kind of tile met so far: its bits, the rows that see a key in it, and how many pairs it allows."""

    bits: list[torch.Tensor] = field(default_factory=list)
    alive: list[torch.Tensor] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for whole in (False, True):
            self.number(torch.full((TILE, TILE), whole, device="cpu"))

    def number(self, allowed: torch.Tensor) -> int:
        """The kind of a tile with these pairs, (TILE or fewer, TILE or fewer); beyond an end nobody sees anybody."""
        allowed = F.pad(allowed, (0, TILE - allowed.shape[1], 0, TILE - allowed.shape[0]))
        bits = (allowed.unflatten(-1, (-1, 8)) * BIT).sum(-1).to(torch.uint8)
        name = bits.numpy().tobytes()
        if name not in self._numbers:
            self._numbers[name] = len(self.bits)
            self.bits.append(bits)
            self.alive.append(allowed.any(-1))
            self.kept.append(int(allowed.sum()))
        return self._numbers[name]


@dataclass(frozen=True)
class _Sheet:
    """The tiles of one pattern: kinds (rows of tiles, columns), which queries see a key, and pairs as in TileMap."""

    kinds: torch.Tensor
    alive: torch.Tensor
    pairs: int
    kept: int


def _sheet(pattern: Pattern, grid: Grid, kinds: _Kinds) -> _Sheet:
    blocks = Blocks(pattern, grid)
    numbers: dict[Hashable, int] = {}  # of blocks that the pattern cannot tell apart
    lines, alive = [], []
    pairs = kept = 0
    for strip in strips(pattern, grid, TILE):
        line = torch.zeros(-(-len(grid.keys) // TILE), dtype=torch.int32, device="cpu")
        seeing = torch.zeros(TILE, dtype=torch.bool, device="cpu")
        for column in _columns((*strip.full, *strip.partial), grid.keys):
            keys = grid.keys[column * TILE : (column + 1) * TILE]
            place = strip.rows, keys
            if len(strip.rows) == len(keys) == TILE and covers(strip.full, keys):
                kind = FULL
            else:
                allowed = blocks.allowed(*place)
                name = blocks.names[place]
                kind = numbers[name] if name in numbers else kinds.number(allowed)
                if name is not None:
                    numbers[name] = kind
            if kind != EMPTY:
                line[column] = kind
                seeing |= kinds.alive[kind]
                pairs += len(strip.rows) * len(keys)
                kept += kinds.kept[kind]
        lines.append(line)
        alive.append(seeing[: len(strip.rows)])
    return _Sheet(torch.stack(lines), torch.cat(alive), pairs, kept)


def _columns(some: Ranges, keys: range) -> list[int]:
    """Columns of tiles in which a key of these ranges lies."""
    return [column for run in _tile_runs(some, keys) for column in run]


def _touched(some: Ranges, keys: range) -> Ranges:
    """The keys of these tiles."""
    return tuple(keys[run.start * TILE : run.stop * TILE] for run in _tile_runs(some, keys))


def _tile_runs(some: Ranges, keys: range) -> Ranges:
    inside = (range(max(one.start, keys.start), min(one.stop, keys.stop)) for one in some)
    return union(range((one.start - keys.start) // TILE, (one[-1] - keys.start) // TILE + 1) for one in inside if one)
