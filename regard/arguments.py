"""What counts as a number, and how a message quotes what it was given: one rule for every argument."""

from __future__ import annotations

import math
from typing import Any

import torch

from regard.errors import ArgumentError

PLAIN = frozenset({int, float, bool, str, type(None)})  # what `plain` need not look into
LONGEST = 80  # characters of a value that a message quotes


def plain(name: str, value: Any) -> Any:
    """The Python number in a NumPy scalar, a 0-d array or a 0-d tensor; anything else as it is.

    What is kept is always a Python number, so that hashing, texts and files do not depend on where it came from.

    Raises:
        ArgumentError: a tensor whose number would lose its gradient, or cannot be read.

    >>> plain("scale", torch.tensor(0.5))
    0.5
    """
    if type(value) in PLAIN or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name} is a tensor that needs a gradient, and {name} is a number, which has none; multiply tensors by it "
            f"instead, or give {name}.item()"
        )
    try:
        return value.item()
    except (RuntimeError, NotImplementedError, ValueError):
        raise ArgumentError(
            f"{name} is {shown(value)}, whose number cannot be read here; give {name} as a Python number"
        ) from None


def is_whole(value: object) -> bool:
    """Is it a whole Python number? True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(name: str, number: object, least: int | None = None) -> int:
    """The number as a Python int, if it is a whole one of at least `least` that fits 64 bits.

    >>> whole("size", torch.tensor(3), 1)
    3
    """
    found = plain(name, number)
    if not is_whole(found) or (least is not None and found < least):
        rule = "a whole number" if least is None else f"a whole number, {least} or more"
        raise ArgumentError(f"{name} is {shown(found)}; it needs {rule}")
    if not -(2**63) <= found < 2**63:
        raise ArgumentError(f"{name} is {shown(found)}; positions are counted in 64 bits")
    return found if type(found) is int else int(found)


def real(name: str, number: object) -> float:
    """The number as a Python float, if it is a finite one."""
    found = plain(name, number)
    try:
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return float(found)
    except OverflowError:  # a whole number beyond what a float reaches
        pass
    raise ArgumentError(f"{name} is {shown(found)}; it needs a finite number")


def yes_or_no(name: str, value: object) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}; it is True or False")
    return value


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, and not longer than a line.

    >>> shown(torch.zeros(2, 3))
    'a tensor (2, 3) of torch.float32'
    """
    if isinstance(value, torch.Tensor):
        kind = "a nested tensor" if value.is_nested else f"a tensor {(*value.shape,)}"
        return f"{kind} of {value.dtype}"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write the longest ones
        return f"a whole number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
