"""Rotary positions of heads by one function of C instead of several operations of PyTorch, with the same bits."""

from __future__ import annotations

from typing import Any

import torch

from regard.backends.native.few_rows import rotation_of_heads
from regard.backends.second_order import direct_apply
from regard.positions import Rotary, makes_other_tensors, turn_halves


def rotate_heads(positions: Rotary, x: torch.Tensor, start: int) -> torch.Tensor:
    """`positions.rotate_from(x, start)` with the same bits, in less time on the CPU."""
    rotate = None if torch.compiler.is_compiling() else rotation_of_heads()
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
    if start + x.shape[2] > around.stop:
        return positions.rotate_from(x, start)

    first = start - around.start
    if torch.is_grad_enabled() and x.requires_grad:
        if x.dtype != torch.float32 or _has_tangents():
            return positions.rotate_from(x, start)
        return _rotated(x, cos, sin, first, False)
    rotated = rotate(x, cos, sin, first, False)
    return positions.rotate_from(x, start) if rotated is None else rotated


def _has_tangents() -> bool:
    """Whether derivatives are computed in forward mode, for which there is no rule here."""
    return torch.autograd.forward_ad._current_level >= 0


class _Rotated(torch.autograd.Function):
    """Heads rotated to their positions, or back. The gradient of a rotation is the rotation back, and the reverse."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: int, back: bool
    ) -> torch.Tensor:
        ctx.rotation = cos, sin, first, back
        return _turn(x, cos, sin, first, back)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        cos, sin, first, back = ctx.rotation
        return _turn(grad, cos, sin, first, not back), None, None, None, None


_rotated = direct_apply(_Rotated)


def _turn(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: int, back: bool
) -> torch.Tensor:
    """By the compiled library; by operations of PyTorch where it returns None, as for derivatives of a gradient."""
    rotate = rotation_of_heads()
    rotated = None if rotate is None else rotate(x, cos, sin, first, back)
    if rotated is not None:
        return rotated
    positions = slice(first, first + x.shape[2])
    return turn_halves(x, cos[positions], -sin[positions] if back else sin[positions])
