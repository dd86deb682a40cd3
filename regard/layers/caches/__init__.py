"""Keys and values that a conversation keeps, so that each token is projected once.

Attention sees the first `length` entries of a cache; what a layer appends stands at the positions that follow. A
kind of cache says what is kept (all, up to an end, the last), its dtype how exactly; a refused call changes neither.
"""

from regard.layers.caches.base import Cache
from regard.layers.caches.kinds import GrowingCache, RingCache, StaticCache, load_cache, new_cache
from regard.layers.caches.state import RecurrentState

__all__ = ["Cache", "GrowingCache", "StaticCache", "RingCache", "RecurrentState", "new_cache", "load_cache"]
