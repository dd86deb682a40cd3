"""The flex backend: structured patterns on cuda by PyTorch's FlexAttention, with one compiled kernel for all patterns.

`tile_map` turns a pattern into tiles, with bits for those that are partly masked. `tables` makes FlexAttention's block
mask and score function from them. `backend` assesses problems and computes calls. The first call of a kind compiles.
"""

from regard.backends.flex.backend import Flex

__all__ = ["Flex"]
