"""The inputs of FlexAttention's kernels: the tiles to visit, the allowed pairs, and the function that changes a score.

The pairs of a band are compared with its limits. Other patterns whose queries see few runs of keys are compared with
the first and last key of each run. The rest are read from the bits of their tiles, which takes the kernel about 1.3
times as long. A score is capped, then the bias is added, before the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask

from regard.backends.flex.tile_map import EMPTY, FAR, FULL, MOST_RUNS, TILE, TileMap
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem

_PIECE = 1 << 24  # pairs that are looked at together while runs are found

Allows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
ChangeScore = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # a cached result may be used later in a call with gradients
def block_mask(tiles: TileMap, q_len: int, k_len: int, device: torch.device) -> BlockMask:
    """FlexAttention's block mask of a tile map."""
    kinds = tiles.kinds.to(device)
    if tiles.limits is not None:
        allows = _by_limits(tiles.limits.to(device))
    else:
        bits = tiles.bits.to(device)
        runs = runs_of(kinds, bits)
        allows = _by_bits(kinds, bits) if runs is None else _by_runs(*runs)

    # Given both ways round, since PyTorch would transpose by vmap, which fails inside a compiled call.
    partial = kinds > FULL
    full = kinds == FULL
    return BlockMask(
        (q_len, k_len),
        *_ordered(partial),
        *_ordered(full),
        *_ordered(partial.mT),
        *_ordered(full.mT),
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=allows,
    )


def _by_limits(limits: torch.Tensor) -> Allows:
    """The pairs of a band, by its limits; tensors, so that another band compiles nothing."""
    nearest, farthest, start, stop = limits.unbind()

    def allows(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        distance = key - query
        return (distance >= nearest) & (distance <= farthest) & (key >= start) & (key < stop)

    return allows


def _by_runs(firsts: torch.Tensor, ends: torch.Tensor) -> Allows:
    """The pairs of a pattern whose queries see few runs of keys, each compared with its first key and its end."""
    runs = [(lookup(first), lookup(end)) for first, end in zip(firsts, ends, strict=True)]

    def allows(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        place = batch, head, query
        in_run = [(key >= first(*place)) & (key < end(*place)) for first, end in runs]
        return reduce(torch.logical_or, in_run)

    return allows


def runs_of(kinds: torch.Tensor, bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The first key and one past the last of each run of keys that a query sees.

    Both are (runs, batch or 1, heads or 1, queries) int32, queries filled up to whole tiles. The number of runs is a
    power of two, so that few kernels are compiled; runs beyond those of a query are empty. None if a query sees more
    than `MOST_RUNS`.
    """
    rows = kinds.flatten(0, 2)  # (rows of tiles, columns)
    full = F.pad(rows == FULL, (1, 1))
    # Full tiles between full ones hold no end of a run.
    inside = full[:, :-2] & full[:, 1:-1] & full[:, 2:]
    counts, columns = _ordered((rows != EMPTY) & ~inside)
    most = max(1, int(counts.max()))
    columns = columns[:, :most].long()
    is_chosen = torch.arange(most, device=rows.device) < counts[:, None]
    chosen = rows.gather(1, columns).where(is_chosen, EMPTY)
    next_to_full = full[:, 2:].gather(1, columns) & (chosen == FULL)
    joined = columns[:, 1:] == columns[:, :-1] + 1
    joined |= next_to_full[:, :-1] & (chosen[:, 1:] == FULL)  # (rows of tiles, tiles - 1)

    parts = []
    longest = 1
    rows_at_once = max(1, _PIECE // (most * TILE * TILE))
    pieces = zip(*(x.split(rows_at_once) for x in (chosen, columns, joined)), strict=True)
    for kinds_of_rows, columns_of_rows, joined_tiles in pieces:
        # (rows of tiles, queries, keys of the tiles)
        starts, stops = _edges(bits[kinds_of_rows], joined_tiles)
        longest = max(longest, int(starts.sum(-1).max()))
        if longest > MOST_RUNS:
            return None
        keys = _keys_of_tiles(columns_of_rows)
        parts.append(torch.stack([_first_keys(starts, keys), _first_keys(stops, keys + 1)]))
    runs = 1 << (longest - 1).bit_length()
    # (first or end, runs, rows of tiles, queries of a tile)
    table = torch.cat(parts, 1)[..., :runs].movedim(-1, 1)
    firsts, ends = table.reshape(2, runs, *kinds.shape[:2], -1).contiguous()
    return firsts, ends


def _keys_of_tiles(columns: torch.Tensor) -> torch.Tensor:
    """The keys of tiles in these columns, (rows of tiles, 1, keys of the tiles) int32."""
    within = torch.arange(TILE, device=columns.device)
    keys = columns[:, :, None] * TILE + within
    return keys.flatten(1)[:, None].int()


def _first_keys(chosen: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The first keys that are chosen for each query, in ascending order; FAR where there are fewer than MOST_RUNS."""
    numbers = torch.where(chosen, keys, FAR)
    return numbers.topk(MOST_RUNS, largest=False, sorted=True).values


def _edges(bits: torch.Tensor, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a run of keys starts, and where one ends, (rows of tiles, queries, keys) bool.

    Args:
        bits: (rows of tiles, tiles, TILE, TILE // 8), of some tiles in the order of their keys.
        joined: (rows of tiles, tiles - 1), whether a run may go on from a tile into the next.
    """
    places = torch.arange(8, device=bits.device)
    # (rows of tiles, queries, tiles, keys)
    allowed = (bits[..., None] >> places & 1).bool().flatten(3).transpose(1, 2)
    before = F.pad(allowed, (1, 0))[..., :-1]
    after = F.pad(allowed, (0, 1))[..., 1:]
    before[:, :, 1:, 0] = allowed[:, :, :-1, -1] & joined[:, None]
    after[:, :, :-1, -1] = allowed[:, :, 1:, 0] & joined[:, None]
    return (allowed & ~before).flatten(2), (allowed & ~after).flatten(2)


def _by_bits(kinds: torch.Tensor, bits: torch.Tensor) -> Allows:
    """The pairs of any pattern, by the bits of its tiles."""
    torch._dynamo.maybe_mark_dynamic(bits, 0)  # the number of kinds differs between patterns
    kind_at = lookup(kinds)

    def allows(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        kind = kind_at(batch, head, query // TILE, key // TILE)
        byte = bits[kind, query % TILE, key % TILE // 8]
        return (byte.to(torch.int32) >> (key % 8)) & 1 == 1

    return allows


def lookup(table: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A function that reads `table` at one index for each axis; an axis of size 1 is broadcast."""
    axes = [axis for axis, size in enumerate(table.shape) if size > 1]
    squeezed = table.reshape([table.shape[axis] for axis in axes])

    def read(*place: torch.Tensor) -> torch.Tensor:
        if not axes:
            return squeezed
        return squeezed[tuple(place[axis] for axis in axes)]

    return read


def _ordered(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of chosen tiles in each row, and the columns of the row, chosen ones first.

    Contiguous, since the kernels of the gradients step through a row's columns by one number and ignore other strides.
    """
    chosen = chosen.contiguous()
    order = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def change_of(problem: Problem, operands: Operands) -> ChangeScore | None:
    """softcap · tanh(score / softcap) + bias as a function of (score, batch, head, query, key); None without both."""
    softcap = None
    if problem.softcap is not None:
        softcap = _number(problem.softcap, torch.float32, operands.q.device)
    bias = None if operands.bias is None else _bias_at(operands.bias, operands)
    if softcap is None and bias is None:
        return None

    def change(
        score: torch.Tensor,
        batch: torch.Tensor,
        head: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
    ) -> torch.Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is None:
            return score
        added = bias(batch, head, query, key).to(score.dtype)
        # Masked, even if the score is NaN.
        return torch.where(added == -math.inf, -math.inf, score + added)

    return change


def _bias_at(bias: torch.Tensor | Relative, operands: Operands) -> Callable[..., torch.Tensor]:
    """A function of (batch, head, query, key) that returns the bias."""
    if isinstance(bias, torch.Tensor):
        return lookup(_narrow(bias))
    by_distance = lookup(_narrow(bias.table))
    grid = operands.grid
    assert isinstance(grid.q_start, int)
    shift = _number(grid.keys.start - grid.q_start - bias.lowest, torch.int64, grid.device)

    def bias_at(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return by_distance(head, key - query + shift)

    return bias_at


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # as in `block_mask`
def _number(number: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number that the kernel reads: compiled into it, each number would need a kernel of its own, and PyTorch 2.11
    fails where it turns a float that changes into a symbol."""
    return torch.tensor(number, dtype=dtype, device=device)


def _narrow(bias: torch.Tensor) -> torch.Tensor:
    """The bias in float32 without a gradient, as the kernels need it."""
    bias = bias.detach()
    return bias.float() if bias.dtype == torch.float64 else bias
