"""What FlexAttention's kernels read: which tiles to visit, and whether a pair of a visited tile is allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch.nn.attention.flex_attention import BlockMask

from regard.kernels.flex.tile_map import FULL, TILE, TileMap


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is remembered may be needed where gradients are
def block_mask(tiles: TileMap, q_len: int, k_len: int, device: torch.device) -> BlockMask:
    """The tiles on a device.

    Args:
        tiles: what a pattern became.
        q_len: queries.
        k_len: reachable keys.
        device: where the tensors of the call are.
    """
    kinds, bits = tiles.kinds.to(device), tiles.bits.to(device)
    torch._dynamo.maybe_mark_dynamic(bits, 0)  # patterns differ in how many kinds they have
    kind_at = lookup(kinds)

    def allows(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        kind = kind_at(batch, head, query // TILE, key // TILE)
        byte = bits[kind, query % TILE, key % TILE // 8]
        return (byte.to(torch.int32) >> (key % 8)) & 1 == 1

    return BlockMask.from_kv_blocks(
        *_ordered(kinds > FULL), *_ordered(kinds == FULL), TILE, mask_mod=allows, seq_lengths=(q_len, k_len)
    )


def lookup(table: torch.Tensor) -> Callable[..., torch.Tensor]:
    """`table[place]` for a place of one index an axis, where an axis of size 1 has the same for every index."""
    used = [size > 1 for size in table.shape]
    flat = table.reshape([size for size in table.shape if size > 1])

    def at(*place: torch.Tensor) -> torch.Tensor:
        needed = tuple(index for index, wanted in zip(place, used, strict=True) if wanted)
        return flat[needed] if needed else flat

    return at


def _ordered(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many tiles of each row are chosen, and all columns of the row with the chosen ones first."""
    order = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)
