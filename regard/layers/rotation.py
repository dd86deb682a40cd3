"""Rotary positions of heads in a step of decoding, by one function of C instead of several calls of PyTorch."""

from __future__ import annotations

import torch

from regard.backends.native.few_rows import rotation_of_few_rows
from regard.positions import Rotary, makes_other_tensors


def rotate_heads(positions: Rotary, x: torch.Tensor, start: int) -> torch.Tensor:
    """`positions.rotate_from(x, start)` with the same bits, in less time for a few positions on the CPU."""
    rotate = None if torch.compiler.is_compiling() else rotation_of_few_rows()
    head_dim = x.shape[3]
    if (
        rotate is None
        or not positions.turns_halves(head_dim)
        or x.device.type != "cpu"
        or start < 0
        or makes_other_tensors()
    ):
        return positions.rotate_from(x, start)
    cos, sin, around = positions.turns_around(start, head_dim)
    rotated = rotate(x, cos, sin, start - around.start)
    return positions.rotate_from(x, start) if rotated is None else rotated
