"""Functions of C on the CPU: products of a few rows with a matrix, sums of exponentials, and rotations of heads.

For a few rows, a call of PyTorch takes longer than the computation, and PyTorch reads a large matrix at half the speed
of memory. A rotation takes several of its operations. The functions return None where PyTorch has to compute: for more
rows, for other dtypes and layouts, for derivatives, and wherever something watches PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from regard.backends.native.interpreter import interpreter

FEW_ROWS = 15  # RG_FEW_ROWS


@cache
def product_of_few_rows() -> Callable[..., Any] | None:
    """A function of x (.., in), weight (out, in) and bias (out,) or None that returns x weightᵀ + bias (.., out).

    The bits of a row do not depend on the other rows (14 at most) or on the number of threads.
    """
    opened = interpreter()
    return None if opened is None else opened.function("rg_project")


@cache
def log_sum_exp_of_few_rows() -> Callable[..., Any] | None:
    """A function of float32 numbers (rows, n) that returns log Σ exp of each row, (rows, 1)."""
    opened = interpreter()
    return None if opened is None else opened.function("rg_log_sum_exp")


@cache
def rotation_of_heads() -> Callable[..., Any] | None:
    """A function of heads x (batch, heads, length, dim), cosines and sines (positions, dim), the first position, and
    whether they are rotated back.

    It returns x · cosines + (x with its halves exchanged) · sines, with the bits that PyTorch's operations give. Back,
    the second product is subtracted.
    """
    opened = interpreter()
    return None if opened is None else opened.function("rg_rotate")
