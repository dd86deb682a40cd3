"""Keys and values that a conversation keeps, so that each token is projected once.

Attention sees the first `length` entries of a cache; what a layer appends stands at the positions that follow.
"""

from regard.caches.growing import GrowingCache

__all__ = ["GrowingCache"]
