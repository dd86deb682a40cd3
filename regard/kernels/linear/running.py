"""The logarithm of a running sum of exponentials, with second derivatives that are finite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from regard.kernels.flash import weigh
from regard.kernels.second_order import Piece, gradients

PAIRS = 1 << 20  # of a place and one before it, at once where second derivatives are computed


def running_log_sum(x: torch.Tensor) -> torch.Tensor:
    """log Σ exp(x_j) over j <= i, along the last axis.

    PyTorch's own operation takes the logarithm of the gradient that arrives, whose derivative is infinite at 0.
    """
    return _RunningLogSum.apply(x)


class _RunningLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.logcumsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients(partial(_first, x), partial(_pieces, x), (x,), grads)[0]


def _first(x: torch.Tensor, grads: Any) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(leaf.logcumsumexp(-1), leaf, grads[0])


def _pieces(x: torch.Tensor) -> Iterator[Piece]:
    length = x.shape[-1]
    step = max(1, PAIRS // max(1, x.numel()))
    for at in range(0, length, step):
        rows, before = slice(at, min(at + step, length)), slice(0, min(at + step, length))

        def compute(x: torch.Tensor, first: int = at, count: int = rows.stop - at) -> tuple[torch.Tensor]:
            each = x[..., None, :].expand(*x.shape[:-1], count, -1)
            later = torch.ones_like(each, dtype=torch.bool).triu_(first + 1)
            return (weigh(each, later)[1],)

        yield Piece(compute, ((..., before),), ((..., rows),))
