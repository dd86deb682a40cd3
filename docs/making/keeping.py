"""The table of cache sizes on the page "A small cache", measured on caches."""

from __future__ import annotations

from typing import Any

import torch

from regard.layers.caches import new_cache

DIM, HEADS, LENGTH = 512, 8, 4096


def kept(kv_heads: int, kind: str = "dynamic", **options: Any) -> int:
    """Bytes that the cache of one layer holds after LENGTH positions of one text."""
    cache = new_cache(kind, 1, kv_heads, DIM // HEADS, **options)
    keys = torch.zeros(1, kv_heads, LENGTH, DIM // HEADS)  # (batch, kv_heads, length, head_dim)
    for chunk in keys.split(512, dim=2):
        cache.append(chunk, chunk)
    return cache.nbytes


def cache_table() -> str:
    """One row for each way to make a cache smaller, with its size."""
    rows = [
        ("as many key/value heads as query heads, float32", kept(8)),
        ("2 key/value heads (grouped queries)", kept(2)),
        ("2 key/value heads, bfloat16", kept(2, dtype=torch.bfloat16)),
        ("2 key/value heads, int8", kept(2, dtype="int8")),
        ("1 key/value head (multi-query), int8", kept(1, dtype="int8")),
        (
            "2 key/value heads, only the last 1,023 positions (ring; it has some spare room)",
            kept(2, "ring", capacity=1023),
        ),
    ]
    whole = rows[0][1]
    lines = [f"| cache for {LENGTH:,} positions, one layer | KiB | share |", "|---|---|---|"]
    lines += [f"| {words} | {size / 1024:,.0f} | {size / whole:.1%} |" for words, size in rows]
    return "\n".join(lines)


PARTS = {"cache-table": cache_table}
