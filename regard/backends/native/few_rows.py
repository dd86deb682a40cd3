"""Functions of C for a few rows on the CPU: products with a matrix, sums of exponentials, and rotations of heads.

PyTorch takes longer to be called for so little than the processor to compute it, and reads a large matrix at half of
the speed of memory. The functions return None where PyTorch has to compute: for more rows, other dtypes and layouts,
derivatives, and wherever something looks at PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from regard.backends.native.interpreter import interpreter

FEW_ROWS = 15  # RG_FEW_ROWS


@cache
def product_of_few_rows() -> Callable[..., Any] | None:
    """A function of x (.., in), weight (out, in) and bias (out,) or None; x weightᵀ + bias is (.., out).

    A row has the same bits with up to 14 others beside it, with any number of threads.
    """
    opened = interpreter()
    return None if opened is None else opened.function("rg_project")


@cache
def log_sum_exp_of_few_rows() -> Callable[..., Any] | None:
    """A function of float32 numbers (rows, n): log Σ exp of each row, (rows, 1)."""
    opened = interpreter()
    return None if opened is None else opened.function("rg_log_sum_exp")


@cache
def rotation_of_few_rows() -> Callable[..., Any] | None:
    """A function of heads x (batch, heads, length, dim), cosines and sines (positions, dim), and the first position.

    x · cosines + (x with its halves exchanged) · sines, with the bits of these operations of PyTorch.
    """
    opened = interpreter()
    return None if opened is None else opened.function("rg_rotate")
