"""Rotary positions of heads by one function of C instead of several operations of PyTorch, with the same bits."""

from __future__ import annotations

from typing import Any

import torch

from regard.backends.native.few_rows import rotation_of_heads
from regard.backends.second_order import direct_apply
from regard.positions import Rotary, makes_other_tensors


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
    first = start - around.start
    if torch.is_grad_enabled() and x.requires_grad:
        if x.dtype != torch.float32 or start + x.shape[2] > around.stop or _has_tangents():
            return positions.rotate_from(x, start)
        return _rotated(x, cos, sin, first, False)
    rotated = rotate(x, cos, sin, first, False)
    return positions.rotate_from(x, start) if rotated is None else rotated


def _has_tangents() -> bool:
    """Whether derivatives are computed in forward mode, for which there is no rule here."""
    return torch.autograd.forward_ad._current_level >= 0


class _Rotated(torch.autograd.Function):
    """Heads rotated to their positions, or back. The gradient of one is the other, so it has derivatives too."""

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
        if grad.dtype != torch.float32 or torch.is_grad_enabled():
            turned = _turn_by_operations(grad, cos, sin, first, not back)
        else:
            turned = _turn(grad, cos, sin, first, not back)
        return turned, None, None, None, None


_rotated = direct_apply(_Rotated)


def _turn(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: int, back: bool
) -> torch.Tensor:
    rotate = rotation_of_heads()
    rotated = None if rotate is None else rotate(x, cos, sin, first, back)
    return _turn_by_operations(x, cos, sin, first, back) if rotated is None else rotated


def _turn_by_operations(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, first: int, back: bool
) -> torch.Tensor:
    """The same by operations of PyTorch, which autograd and whoever looks at operations can see."""
    positions = slice(first, first + x.shape[2])
    sines = -sin[positions] if back else sin[positions]
    return x * cos[positions] + x.roll(x.shape[3] // 2, -1) * sines
