"""How a cache keeps its numbers: as they came, rounded to half the bytes, or as int8 with a scale for each vector."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.kinds import shown

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
FULL = (torch.float64, torch.float32)  # of a computation; a cache of these rounds nothing
LEVELS = 127  # of int8 on each side of 0


def checked_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A dtype that caches keep numbers in, also by its name.

    >>> checked_dtype("int8")
    torch.int8
    """
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in DTYPES.values():
        raise ArgumentError(f"dtype={shown(dtype)}: a cache keeps numbers as {', '.join(DTYPES)}")
    return found


def check_numbers(name: str, new: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise a ShapeError where numbers would be rounded that nobody asked to round."""
    if new.dtype not in DTYPES.values() or new.dtype == torch.int8:
        raise ShapeError(f"{name} has dtype {new.dtype}; a cache takes floating-point numbers")
    if dtype in FULL and torch.promote_types(new.dtype, dtype) != dtype:
        raise ShapeError(
            f"{name} has dtype {new.dtype} and this cache keeps {dtype}, which would round it; make the cache with "
            f"dtype={new.dtype}, or with a half dtype or 'int8' to round on purpose"
        )


def kept(name: str, new: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Numbers as a cache of `dtype` keeps them, and for int8 the scales (..., 1) they are multiplied with.

    int8: each vector x (a token of a key/value head) becomes round(x / s) with s = max|x| / 127.

    Raises:
        UnsupportedError: int8 of numbers that need a gradient.
        ArgumentError: a finite number beyond what the dtype reaches.
    """
    if dtype == new.dtype:
        return new, None
    if dtype != torch.int8:
        numbers = new.to(dtype)
        _refuse_overflow(name, new, numbers, dtype)
        return numbers, None
    if torch.is_grad_enabled() and new.requires_grad:
        raise UnsupportedError(
            f"{name} needs a gradient, and rounding to int8 has none; continue under torch.no_grad(), or train with a "
            f"cache of floating-point numbers"
        )
    largest = new.abs().amax(-1, keepdim=True)
    scales = (largest / LEVELS).to(torch.float32).clamp_min(torch.finfo(torch.float32).tiny)
    _refuse_overflow(name, largest, scales, dtype)
    return (new / scales).round().to(torch.int8), scales


def _refuse_overflow(name: str, new: torch.Tensor, numbers: torch.Tensor, dtype: torch.dtype) -> None:
    if not new.is_meta and (numbers.isinf() & new.isfinite()).any():
        raise ArgumentError(
            f"{name} reaches {float(new.abs().max()):.3g}, beyond what a cache of {dtype} can keep; use a wider dtype"
        )
