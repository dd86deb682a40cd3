"""Any structured pattern on cuda through PyTorch's FlexAttention, one compiled kernel for all patterns.

`tile_map` turns a pattern into tiles and the bits of those that are seen in part, `tables` are FlexAttention's own
tables of it, `changes` what happens to a score, `backend` is what the planner asks. The first call of a kind compiles.
"""

from regard.backends.flex.backend import Flex

__all__ = ["Flex"]
