"""What counts as a number: one rule for every argument. What needs no torch stands in `kinds`."""

from __future__ import annotations

import math
from typing import Any

import torch

from regard.errors import ArgumentError
from regard.kinds import number_in, shown

PLAIN = frozenset({int, float, bool, str, type(None)})  # what `plain` need not look into


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
    number = number_in(value.detach() if isinstance(value, torch.Tensor) else value)
    if type(number) not in PLAIN and hasattr(number, "item"):
        raise ArgumentError(
            f"{name} is {shown(value)}, whose number cannot be read here; give {name} as a Python number"
        )
    return number


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
