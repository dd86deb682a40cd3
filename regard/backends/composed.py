"""One attention made of several fused calls, differentiable as a whole.

The fused backend makes one call for each row block, the tiled backend one for each group. Both pass their calls as
`Calls` to the autograd function of this file, which computes first and second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from regard.backends import flash
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import direct_apply, gradients
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem

KEPT = 1 << 18  # numbers in the masks that one plan keeps: 1 MiB in float32


class Calls(Protocol):
    """Fused calls that together compute a problem."""

    @property
    def problem(self) -> Problem:
        """The call."""
        ...

    def forward(self, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len)."""
        ...

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v, and of the bias or its table if calls of this kind give it one."""
        ...


def compose(calls: Calls, operands: Operands, sums: bool = True) -> tuple[torch.Tensor, Any]:
    """Output and, if `sums`, log-sum-exp of these calls, else None; gradients of both are supported."""
    bias = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
    apply = _Composed.apply if torch._C._are_functorch_transforms_active() else _apply
    result = apply(operands.q, operands.k, operands.v, bias, calls, operands, sums)
    return result if sums else (result, None)  # a second output costs a call of few tokens some microseconds


class _Composed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        calls: Calls,
        operands: Operands,
        sums: bool,
    ) -> Any:
        output, log_sum_exp = calls.forward(operands)
        ctx.save_for_backward(
            q, k, v, output, log_sum_exp, bias
        )  # saved, so that autograd detects in-place changes of the bias too
        ctx.lowered = calls, operands
        ctx.set_materialize_grads(False)
        return (output, log_sum_exp) if sums else output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grads = (*grads, None)[:2]
        q, k, v, output, log_sum_exp, bias = ctx.saved_tensors
        calls, operands = ctx.lowered

        def first(grads: Any) -> Any:
            grad = torch.zeros_like(output) if grads[0] is None else grads[0]
            saved = flash.Saved(q, k, v, output, log_sum_exp, grad, grads[1])
            dq, dk, dv, *of_bias = calls.backward(operands, saved)
            return dv, dq, dk, of_bias[0] if of_bias else None, None, None

        inputs = v, q, k, bias, None, None
        dv, dq, dk, dbias, *_ = gradients(first, partial(softmax_pieces, calls.problem, operands), inputs, grads)
        return dq, dk, dv, dbias, None, None, None


_apply = direct_apply(_Composed)


class KeptMasks:
    """A cache for the masks of a plan's calls, by name, device and dtype. It holds at most `KEPT` numbers in all.

    A mask may be cached only if it does not depend on the values of tensors.
    """

    def __init__(self) -> None:
        self._masks: dict[Any, torch.Tensor] = {}
        self._left = KEPT

    def reserve(self, numbers: int) -> bool:
        """Count a mask that the caller keeps against the limit; False if it does not fit."""
        fits = numbers <= self._left
        self._left -= numbers if fits else 0
        return fits

    def get(self, name: Any, like: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The mask of this name with the device and dtype of `like`: from the cache, or made by `make`."""
        key = name, like.device, like.dtype
        if (kept := self._masks.get(key)) is not None:
            return kept
        with torch.inference_mode(False):  # a kept mask may be used later in a call with gradients
            mask = make()
        if self.reserve(mask.numel()):
            self._masks[key] = mask
        return mask
