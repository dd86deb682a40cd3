"""Linear attention: time and memory grow linearly with the length, since a sum over keys replaces the keys.

Causal calls are computed chunk by chunk: pairs within a chunk one by one, all earlier keys through their sum.
"""

from regard.backends.linear.attend import Linear

__all__ = ["Linear"]
