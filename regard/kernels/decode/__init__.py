"""Few queries against many keys, as when a text is continued token by token.

Query heads that share a key/value head become rows of one matrix, so that each key is read once; keys that a cache
keeps narrow are widened piece by piece, never all at once. `fold` asks the fused operation, `weigh` holds the weights.
"""

from regard.kernels.decode.backend import Decode

__all__ = ["Decode"]
