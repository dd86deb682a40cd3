"""The tiled backend: structured patterns by a few dense fused calls, at about the cost of their kept pairs.

`grouping` turns a schedule into a program of calls without reading a tensor. `views` are the strided views and gathers
by which calls select queries and keys. `execution` runs a program. `shares` assigns the batch rows and heads of a call
to programs. `backend` assesses problems and estimates costs.
"""

from regard.backends.tiled.backend import Tiled

__all__ = ["Tiled"]
