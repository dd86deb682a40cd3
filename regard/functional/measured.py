"""What PyTorch's FLOP counter and profiler see of a call, since the kernels of a backend are no operations of PyTorch.

While a FLOP counter runs, a call is computed by the operation `regard::attention`, whose FLOPs are those of the pairs
that its pattern allows. While a profiler runs, a call has this name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
from torch.utils.flop_counter import (
    FlopCounterMode,
    _FlopCounterMode,
    flop_registry,
    register_flop_formula,
)

from regard.core.call import Call
from regard.core.problem import checked_mechanism
from regard.errors import UnsupportedError
from regard.functional.compiled import traced_attention
from regard.mechanisms import Softmax
from regard.patterns import parse
from regard.patterns.text import read_together

_OPERATIONS: tuple[Any, Any] = torch.ops.regard.attention, torch.ops.regard.attention_backward
_SOFTMAX = Softmax()
profiling: Callable[[], bool] = torch.autograd._profiler_enabled
open_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def measured(call: Call, compute: Callable[[Call], torch.Tensor]) -> torch.Tensor:
    """The output of a call while a profiler runs, or a mode that sees PyTorch's operations, such as a FLOP counter."""
    if (counter := _counter()) is not None:
        for one in _OPERATIONS:  # a counter that is older than the formulas lacks them
            counter.flop_registry.setdefault(one, flop_registry[one])
        try:
            if (mechanism := checked_mechanism(call.mechanism)) != _SOFTMAX:
                raise UnsupportedError(f"{mechanism} is not counted by pairs")
            return traced_attention(call)
        except UnsupportedError as reason:
            warnings.warn(
                f"a FLOP counter counts only what this call computes by PyTorch's own operations, because it cannot be "
                f"one operation: {reason}",
                stacklevel=3,
            )
    if not profiling():
        return compute(call)
    with record_function("regard::attention"):
        return compute(call)


def _counter() -> FlopCounterMode | None:
    return next((mode.counter for mode in modes() if isinstance(mode, _FlopCounterMode)), None)


@register_flop_formula(_OPERATIONS[0], get_raw=True)
def _flops(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any, **options: Any) -> int:
    """Two products of each pair, with a multiplication and an addition for each number."""
    return 2 * _allowed_pairs(q, k, *others, **options) * (q.shape[3] + v.shape[3])


@register_flop_formula(_OPERATIONS[1], get_raw=True)
def _backward_flops(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *others: Any,
    **options: Any,
) -> int:
    """Five products of each pair, as PyTorch counts: the scores again, then the gradients of weights, q, k and v."""
    return 2 * _allowed_pairs(q, k, *others, **options) * (3 * q.shape[3] + 2 * v.shape[3])


def _allowed_pairs(
    q: torch.Tensor,
    k: torch.Tensor,
    *others: Any,
    pattern: str,
    mechanism: str | None,
    first: int | None,
    **_: Any,
) -> int:
    """Pairs of all rows and heads that the pattern allows; all pairs if that depends on tensors without values.

    A mechanism, which reaches this only from a compiled graph, counts as 0 pairs, with a warning.
    """
    _bias, _sink, q_start, _dropout_seed, held, _parameters, _numbers = others
    if mechanism is not None:
        warnings.warn(
            f"a FLOP counter counts no operations of {mechanism} inside a compiled graph",
            stacklevel=2,
        )
        return 0
    batch, heads, q_len = q.shape[:3]
    k_len = k.shape[2]
    tensors = (held or []) + ([] if q_start is None else [q_start])
    if any(isinstance(x, FakeTensor) or x.is_meta for x in tensors):
        return batch * heads * q_len * k_len
    asked = read_together(pattern, held) if held else parse(pattern)
    counted = asked.count(q_len, k_len, q_start=first if q_start is None else q_start)
    by_row = asked.varies_by_row or q_start is not None
    return counted * (1 if by_row else batch) * (1 if asked.varies_by_head else heads)
