"""Structured patterns at the cost of the pairs they keep: a few dense fused calls, forward and backward.

`grouping` turns a schedule into a program of calls without reading a tensor, `estimate` says what that costs where it
is too long, `views` are the strided views and gathers in which calls find their queries and keys, `execution` runs a
program, `shares` gives the batch rows and heads of a call to programs, `backend` is what the planner asks.
"""

from regard.backends.tiled.backend import Tiled

__all__ = ["Tiled"]
