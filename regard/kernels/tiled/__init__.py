"""Structured patterns at the cost of the pairs they keep: a few dense fused calls, forward and backward.

`lowering` turns a pattern into a program without looking at a tensor, `places` are the views and gathers in which a
program's calls find their queries and keys, `execution` runs it and merges, `backend` is what the planner asks.
"""

from regard.kernels.tiled.backend import Tiled

__all__ = ["Tiled"]
