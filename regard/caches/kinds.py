"""The kinds of cache: one that grows, one with a fixed end, and one that keeps only the last entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.caches.base import Cache
from regard.caches.files import read_kind
from regard.caches.given import checked_path
from regard.caches.held import Held
from regard.errors import ArgumentError
from regard.kinds import shown


class GrowingCache(Cache):
    """Grows with its text: room doubles when it runs out, so that n appends copy O(n) entries.

    Where gradients are recorded the parts are joined instead of written in place, so that training through a cache
    is exact.

    >>> cache = GrowingCache(batch=1, kv_heads=2, head_dim=4)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.length, keys.shape
    (3, torch.Size([1, 2, 3, 4]))
    """

    kind = "dynamic"

    def _room(self, needed: int, now: int) -> int:
        return max(needed, 2 * now, 16) if needed else 0


class StaticCache(Cache):
    """Has room for `capacity` entries from the start and never moves; one more is refused.

    >>> cache = StaticCache(batch=1, kv_heads=2, head_dim=4, capacity=3)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    Traceback (most recent call last):
    regard.errors.ArgumentError: 1 more entries do not fit: this cache holds 3 of 3; make it with a larger capacity
    """

    kind = "static"
    bounded = True

    def _room(self, needed: int, now: int) -> int:
        assert self.capacity is not None
        return self.capacity

    def _check_capacity(self, added: int) -> None:
        assert self.capacity is not None
        if self.length + added > self.capacity:
            raise ArgumentError(
                f"{added} more entries do not fit: this cache holds {self.length} of {self.capacity}; make it with a "
                f"larger capacity"
            )


class RingCache(Cache):
    """Keeps the last `capacity` entries of a text of any length, for patterns that look no further back.

    `length` counts all entries and positions stay true: a pattern that reaches one that is gone is refused. The
    entries of one append see those kept before it and each other; then all but the last `capacity` are dropped. So
    `CausalWindow(w)` needs a capacity of w - 1. The last entries lie in one piece: a quarter more room than needed
    lets them wander, and they move back to the front when it is used up, so that n appends copy O(n) entries.

    >>> cache = RingCache(batch=1, kv_heads=2, head_dim=4, capacity=3)
    >>> for _ in range(5):
    ...     keys, values = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    >>> cache.length, keys.first, cache.keys.first
    (5, 1, 2)
    """

    kind = "ring"
    bounded = True

    def _room(self, needed: int, now: int) -> int:
        assert self.capacity is not None
        return max(needed, self.capacity + max(16, self.capacity // 4))

    def _remembered(self, seen: Held) -> Held:
        assert self.capacity is not None
        kept = seen.without_oldest(max(0, seen.entries - self.capacity))
        usual = self._room(0, 0)
        return kept.moved(usual) if kept.room > usual and not kept.recorded else kept


KINDS: dict[str, type[Cache]] = {cache.kind: cache for cache in (GrowingCache, StaticCache, RingCache)}


def new_cache(kind: str, batch: int, kv_heads: int, head_dim: int, **options: Any) -> Cache:
    """An empty cache of a kind: "dynamic", "static" or "ring"; the rest as for `Cache`.

    >>> new_cache("static", 2, 4, 64, dtype="int8", capacity=512)
    StaticCache(batch=2, kv_heads=4, length=0, head_dim=64, int8, capacity=512)
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(f"kind={shown(kind)} is no cache; there are {', '.join(KINDS)}")
    return KINDS[kind](batch, kv_heads, head_dim, **options)


def load_cache(path: str | Path, device: torch.device | str = "cpu") -> Cache:
    """A cache of whichever kind `save` wrote.

    Raises:
        CheckpointError: missing, damaged, or no cache.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     StaticCache(1, 2, 4, capacity=8).save(f"{folder}/cache.safetensors")
    ...     load_cache(f"{folder}/cache.safetensors")
    StaticCache(batch=1, kv_heads=2, length=0, head_dim=4, float32, capacity=8)
    """
    return KINDS[read_kind(checked_path(path), tuple(KINDS))].load(path, device)
