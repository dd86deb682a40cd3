"""The dtypes in which caches store numbers, and how numbers are rounded to them."""

from __future__ import annotations

import torch

from regard.arguments import shown
from regard.errors import ArgumentError, ShapeError, UnsupportedError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
EXACT_DTYPES = (torch.float64, torch.float32)  # a cache of these rounds nothing
INT8_LEVELS = 127  # largest magnitude of an int8 entry


def checked_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """The storage dtype of a cache, given as a dtype or by its name.

    >>> checked_dtype("int8")
    torch.int8
    """
    known = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(known, torch.dtype) or known not in DTYPES.values():
        raise ArgumentError(f"dtype={shown(dtype)}: a cache stores {', '.join(DTYPES)}")
    return known


def check_numbers(name: str, new: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise a ShapeError if storing these numbers in `dtype` would round them without being asked to."""
    if new.dtype not in DTYPES.values() or new.dtype == torch.int8:
        raise ShapeError(f"{name} has dtype {new.dtype}; a cache takes floating-point numbers")
    if dtype in EXACT_DTYPES and torch.promote_types(new.dtype, dtype) != dtype:
        raise ShapeError(
            f"{name} has dtype {new.dtype} and this cache stores {dtype}, which would round it; make the cache with "
            f"dtype={new.dtype}, or with 'bfloat16', 'float16' or 'int8' if it may round"
        )


def rounded(
    name: str, new: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Numbers rounded to `dtype`, and for int8 their scales (..., 1); None for other dtypes.

    int8: each vector x (one token of one key/value head) becomes round(x / s) with s = max|x| / 127.

    Raises:
        UnsupportedError: int8 storage of numbers that need a gradient.
        ArgumentError: a finite number too large for the dtype.
    """
    if dtype == new.dtype:
        return new, None
    if dtype != torch.int8:
        numbers = new.to(dtype)
        _refuse_overflow(name, new, numbers, dtype)
        return numbers, None
    if torch.is_grad_enabled() and new.requires_grad:
        raise UnsupportedError(
            f"{name} needs a gradient, and rounding to int8 has none; use torch.no_grad(), or train with a "
            f"floating-point cache"
        )
    if new.shape[-1]:
        largest = new.abs().amax(-1, keepdim=True)
    else:  # vectors without numbers have no largest one
        largest = new.new_zeros(*new.shape[:-1], 1)
    # float16 has no numbers as small as the scale of a small vector.
    wide = largest.to(torch.promote_types(new.dtype, torch.float32))
    scales = (wide / INT8_LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
    _refuse_overflow(name, largest, scales, dtype)
    return (new / scales).round().to(torch.int8), scales


def _refuse_overflow(
    name: str, new: torch.Tensor, numbers: torch.Tensor, dtype: torch.dtype
) -> None:
    if not new.is_meta and (numbers.isinf() & new.isfinite()).any():
        raise ArgumentError(
            f"{name} reaches {float(new.abs().max()):.3g}, too large for a cache of {dtype}; use a wider dtype"
        )
