"""The decode backend: few queries and many keys, as when a text is continued token by token.

Query heads that share a key/value head become rows of one matrix, so that each key is read once. Keys that a cache
stores in a narrow dtype are widened chunk by chunk. `fold` calls the fused operation; `weigh` computes all weights.
"""

from regard.backends.decode.backend import Decode

__all__ = ["Decode"]
