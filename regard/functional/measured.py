"""What PyTorch's FLOP counter and profiler see of a call, since the kernels of a backend are no operations of PyTorch.

While a FLOP counter runs, a call is computed by the operation `regard::attention`, whose FLOPs are those of the pairs
that its pattern allows. While a profiler runs, a call has this name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
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
from regard.core.shaped import has_no_values
from regard.errors import UnsupportedError
from regard.functional.compiled import traced_attention
from regard.functional.operation import OperationOptions, OperationTensors
from regard.mechanisms import Softmax
from regard.patterns import parse
from regard.patterns.text import read_together

_OPERATIONS: tuple[Any, Any] = torch.ops.regard.attention, torch.ops.regard.attention_backward
_SOFTMAX = Softmax()
profiling: Callable[[], bool] = torch.autograd._profiler_enabled
open_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def is_unwatched() -> bool:
    """Whether nothing looks at PyTorch's operations in this thread, or changes what they compute.

    Otherwise code that calls no operation of PyTorch would not be seen by a profiler, a mode or a transform.
    """
    return (
        not open_modes()
        and not profiling()
        and not torch._C._is_torch_function_mode_enabled()
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
    )


def measured(call: Call, compute: Callable[[Call], torch.Tensor]) -> torch.Tensor:
    """The output of a call while a profiler runs, or a mode that sees PyTorch's operations, such as a FLOP counter."""
    counter = _counter()
    if counter is not None:
        for operation in _OPERATIONS:  # a counter that is older than the formulas lacks them
            counter.flop_registry.setdefault(operation, flop_registry[operation])
        try:
            return _compute_by_operation(call)
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


def _compute_by_operation(call: Call) -> torch.Tensor:
    """The output of a call by the operation whose FLOPs a counter knows."""
    mechanism = checked_mechanism(call.mechanism)
    if mechanism != _SOFTMAX:
        raise UnsupportedError(f"{mechanism} is not counted by pairs")
    return traced_attention(call)


def _counter() -> FlopCounterMode | None:
    for mode in modes():
        if isinstance(mode, _FlopCounterMode):
            return mode.counter
    return None


@register_flop_formula(_OPERATIONS[0], get_raw=True)
def _flops(*args: Any, out_val: Any = None, **options: Any) -> int:
    """Two products of each pair, with a multiplication and an addition for each number."""
    tensors = OperationTensors(*args)
    pairs = _allowed_pairs(tensors, OperationOptions(**options))
    return 2 * pairs * (tensors.q.shape[3] + tensors.v.shape[3])


@register_flop_formula(_OPERATIONS[1], get_raw=True)
def _backward_flops(grad: torch.Tensor, *args: Any, out_val: Any = None, **options: Any) -> int:
    """Five products of each pair, as PyTorch counts: the scores again, then the gradients of weights, q, k and v."""
    tensors = OperationTensors(*args)
    pairs = _allowed_pairs(tensors, OperationOptions(**options))
    return 2 * pairs * (3 * tensors.q.shape[3] + 2 * tensors.v.shape[3])


def _allowed_pairs(tensors: OperationTensors, options: OperationOptions) -> int:
    """Pairs of all rows and heads that the pattern allows; all pairs if that depends on tensors without values.

    A mechanism, which reaches this only from a compiled graph, counts as 0 pairs, with a warning.
    """
    if options.mechanism is not None:
        warnings.warn(
            f"a FLOP counter counts no operations of {options.mechanism} inside a compiled graph",
            stacklevel=2,
        )
        return 0
    batch, heads, q_len, _ = tensors.q.shape
    k_len = tensors.k.shape[2]
    held = list(tensors.held or ())
    starts = tensors.q_start
    read = held if starts is None else [*held, starts]
    if has_no_values(*read):
        return batch * heads * q_len * k_len

    pattern = read_together(options.pattern, held) if held else parse(options.pattern)
    pairs = pattern.count(q_len, k_len, q_start=options.first if starts is None else starts)
    if not pattern.varies_by_row and starts is None:
        pairs *= batch
    if not pattern.varies_by_head:
        pairs *= heads
    return pairs
