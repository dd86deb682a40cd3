"""Both passes of calls with gradients by functions of C, without code of Python between autograd and the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_double, c_int32, c_int64, c_void_p, py_object
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from regard.backends.native.filling import KernelCall, accumulation_dtype, output_layout
from regard.backends.native.interpreter import interpreter
from regard.backends.native.library import limit_of
from regard.core.hidden import LIMIT, LIMITS
from regard.patterns.row_keys import RowKeys

Sizes = tuple[int, ...]


class CBothPasses(Structure):
    """rg_both_passes."""

    _fields_ = [
        ("call", c_void_p),
        *((name, py_object) for name in ("output", "log_sum_exp", "row_sums", "keywords")),
        ("most_threads", c_int32),
        ("keys_by_row", c_int32),
        *((name, c_int64) for name in ("left", "right", "position")),
        ("limit", c_double),
    ]


class PassFunctions(NamedTuple):
    """The two functions of the library; both return None where only Python computes a call."""

    forward: Callable[..., Any]
    gradients: Callable[..., Any]


@cache
def pass_functions() -> PassFunctions | None:
    """The functions of the library, or None where Python computes both passes."""
    opened = interpreter()
    if opened is None:
        return None
    return PassFunctions(
        opened.function("rg_forward_with_sums"), opened.function("rg_gradients_of_inputs")
    )


class BothPasses:
    """Calls of one plan with the same number of keys and the same position of their first query.

    Several threads may compute such calls at once.
    """

    def __init__(
        self,
        functions: PassFunctions,
        kernel_call: KernelCall,
        keys: range,
        position: int,
        row_keys: RowKeys | None,
    ) -> None:
        problem = kernel_call.problem
        kernel_call.write_keys(keys)
        layout = output_layout(problem)
        rows = layout[0][:3]
        self._kernel_call = kernel_call
        self._struct = CBothPasses(
            call=ctypes.addressof(kernel_call.struct),
            output=layout,
            log_sum_exp=_without_gaps(rows),
            row_sums=_without_gaps((2, *rows)),
            keywords={"dtype": accumulation_dtype(problem.dtype), "device": torch.device("cpu")},
            most_threads=kernel_call.most_threads,
            keys_by_row=row_keys is not None,
            position=position,
            limit=LIMITS.get(problem.dtype, LIMIT),
        )
        if row_keys is not None:
            self._struct.left = limit_of(row_keys.window.left)
            self._struct.right = limit_of(row_keys.window.right)
        address = ctypes.addressof(self._struct)
        # Functions of C, which every call enters without one of Python. The first takes q, k, v and the row keys, and
        # returns output, log-sum-exp, sums of rows, and whether all numbers are sound as 0 or 1. The second takes q, k,
        # v, output, log-sum-exp, sums of rows, the gradients of output and log-sum-exp, and the row keys, and returns
        # the gradients of q, k and v.
        self.forward: Callable[..., Any] = partial(functions.forward, address)
        self.gradients: Callable[..., Any] = partial(functions.gradients, address)


def _without_gaps(shape: Sizes) -> tuple[Sizes, Sizes]:
    """A shape with the strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return shape, tuple(reversed(strides))
