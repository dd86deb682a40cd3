"""Between one number a distance and a block of pairs: a bias by distance and its gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def spread(numbers: torch.Tensor, rows: int, keys: int) -> torch.Tensor:
    """The block whose pair (i, j) holds number rows - 1 - i + j: one number a diagonal.

    Args:
        numbers: (heads, rows + keys - 1), the lower left corner's first.

    Returns:
        (heads, rows, keys).

    >>> spread(torch.arange(4)[None], 2, 3).tolist()
    [[[1, 2, 3], [0, 1, 2]]]
    """
    return numbers[:, : rows + keys - 1].unfold(1, keys, 1).flip(1)


def summed(block: torch.Tensor) -> torch.Tensor:
    """The sums of a block's diagonals, (heads, rows + keys - 1), from the lower left corner on: `spread`, turned round.

    Args:
        block: (heads, rows, keys).

    >>> summed(torch.ones(1, 2, 3)).tolist()
    [[1.0, 2.0, 2.0, 1.0]]
    """
    heads, rows, keys = block.shape
    width = rows + keys - 1
    padded = F.pad(block, (rows - 1, 0, 0, 1))  # (heads, rows + 1, width): zeros before each row, and one row behind
    diagonals = padded.as_strided((heads, rows, width), ((rows + 1) * width, width + 1, 1))
    return diagonals.sum(1)
