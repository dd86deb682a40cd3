"""Caches of keys and values, so that a text is continued without computing its earlier tokens again.

The kind of a cache decides which entries it keeps: all (dynamic; paged), up to a capacity (static), or the last (ring).
Its dtype decides how they are rounded. `RecurrentState` keeps sums instead. A refused call leaves a cache unchanged.
`Cache.keep` keeps chosen entries; `first_and_last`, `heavy_hitters` and `observed_keys` choose some.
"""

from regard.layers.caches.base import Cache
from regard.layers.caches.evicting import first_and_last, heavy_hitters, observed_keys
from regard.layers.caches.kinds import GrowingCache, RingCache, StaticCache, load_cache, new_cache
from regard.layers.caches.paged import PagedCache
from regard.layers.caches.state import RecurrentState

__all__ = [
    "Cache",
    "GrowingCache",
    "StaticCache",
    "RingCache",
    "PagedCache",
    "RecurrentState",
    "new_cache",
    "load_cache",
    "first_and_last",
    "heavy_hitters",
    "observed_keys",
]
