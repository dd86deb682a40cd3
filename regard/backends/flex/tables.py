"""The inputs of FlexAttention's kernels: the tiles to visit, the allowed pairs, and the function that changes a score.

The pairs of a band are compared with its limits; those of other patterns are read from the bits of their tiles, which
takes the kernel longer. A score is capped, then the bias is added, before the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch.nn.attention.flex_attention import BlockMask

from regard.backends.flex.tile_map import FULL, TILE, TileMap
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem

Allows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # a cached result may be used later in a call with gradients
def block_mask(tiles: TileMap, q_len: int, k_len: int, device: torch.device) -> BlockMask:
    """FlexAttention's block mask of a tile map.

    Args:
        tiles: the tile map of a pattern.
        q_len: number of queries.
        k_len: number of reachable keys.
        device: device of the call's tensors.
    """
    kinds = tiles.kinds.to(device)
    allows = _by_bits(kinds, tiles.bits.to(device)) if tiles.limits is None else _by_limits(tiles.limits.to(device))

    # Given both ways round, since PyTorch would transpose by vmap, which fails inside a compiled call.
    partial, full = kinds > FULL, kinds == FULL
    return BlockMask(
        (q_len, k_len),
        *_ordered(partial), *_ordered(full), *_ordered(partial.mT), *_ordered(full.mT),
        BLOCK_SIZE=(TILE, TILE), mask_mod=allows,
    )  # fmt: skip


def _by_limits(limits: torch.Tensor) -> Allows:
    """The pairs of a band, by its limits; tensors, so that another band compiles nothing."""
    nearest, farthest, start, stop = limits.unbind()

    def allows(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        distance = key - query
        return (distance >= nearest) & (distance <= farthest) & (key >= start) & (key < stop)

    return allows


def _by_bits(kinds: torch.Tensor, bits: torch.Tensor) -> Allows:
    """The pairs of any pattern, by the bits of its tiles."""
    torch._dynamo.maybe_mark_dynamic(bits, 0)  # the number of kinds differs between patterns
    kind_at = lookup(kinds)

    def allows(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        kind = kind_at(batch, head, query // TILE, key // TILE)
        byte = bits[kind, query % TILE, key % TILE // 8]
        return (byte.to(torch.int32) >> (key % 8)) & 1 == 1

    return allows


def lookup(table: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A function that reads `table` at one index for each axis; an axis of size 1 is broadcast."""
    used = [size > 1 for size in table.shape]
    flat = table.reshape([size for size in table.shape if size > 1])

    def at(*place: torch.Tensor) -> torch.Tensor:
        needed = tuple(index for index, wanted in zip(place, used, strict=True) if wanted)
        return flat[needed] if needed else flat

    return at


def _ordered(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of chosen tiles in each row, and the columns of the row, chosen ones first.

    Contiguous, since the kernels of the gradients step through a row's columns by one number, whatever the strides say.
    """
    chosen = chosen.contiguous()
    order = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def change_of(problem: Problem, operands: Operands) -> Change | None:
    """softcap · tanh(score / softcap) + bias as a function of (score, batch, head, query, key); None without both."""
    softcap = problem.softcap
    bias = None if operands.bias is None else _bias_at(operands.bias, operands)
    if softcap is None and bias is None:
        return None

    def change(
        score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is None:
            return score
        added = bias(batch, head, query, key).to(score.dtype)
        return torch.where(added == -math.inf, -math.inf, score + added)  # masked, even if the score is NaN

    return change


def _bias_at(bias: torch.Tensor | Relative, operands: Operands) -> Callable[..., torch.Tensor]:
    """A function of (batch, head, query, key) that returns the bias."""
    if isinstance(bias, torch.Tensor):
        return lookup(_narrow(bias))
    by_distance = lookup(_narrow(bias.table))
    grid = operands.grid
    assert isinstance(grid.q_start, int)
    shift = torch.tensor(
        grid.keys.start - grid.q_start - bias.lowest, device=grid.device
    )  # a tensor, since a number would be compiled into the kernel
    return lambda batch, head, query, key: by_distance(head, key - query + shift)


def _narrow(bias: torch.Tensor) -> torch.Tensor:
    """The bias in float32 without a gradient, as the kernels need it."""
    bias = bias.detach()
    return bias.float() if bias.dtype == torch.float64 else bias
