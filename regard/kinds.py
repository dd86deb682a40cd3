"""Checks of what kind of object an argument is; torch is not imported here, so that text can be read without it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from regard.errors import ArgumentError

KindT = TypeVar("KindT")
Kinds = type[Any] | tuple[type[Any], ...] | UnionType
NUMBERS: tuple[Kinds, ...] = (int, (int, float))  # the kinds that mean a number; True and False are none
LONGEST = 80  # characters of a value that a message quotes


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, and not longer than a line; of a tensor or an array the shape.

    >>> shown(["a"])
    "['a']"
    """
    dtype = getattr(value, "dtype", None)
    if getattr(value, "is_nested", False):  # its shape cannot be asked for
        return f"a nested tensor of {dtype}"
    shape = getattr(value, "shape", None)
    if shape is not None and dtype is not None and (hasattr(value, "requires_grad") or len(shape)):
        kind = "a tensor" if hasattr(value, "requires_grad") else "an array"
        return f"{kind} {(*shape,)} of {dtype}"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write the longest ones
        return f"a whole number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def of_kind(name: str, value: Any, kind: Kinds, needs: str) -> Any:
    """The value, if it is of this kind; where numbers are meant, the Python number in a NumPy scalar or a 0-d tensor.

    >>> of_kind("max_words", 3, int, "a whole number")
    3
    """
    value = number_in(value) if kind in NUMBERS else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in NUMBERS):
        raise ArgumentError(f"{name} is {shown(value)}; it needs {needs}")
    return value


def a_string(name: str, value: object) -> str:
    """The value, if it is a string."""
    return of_kind(name, value, str, "a string")


def a_path(name: str, value: object) -> Path:
    """The path that a string or a path names.

    >>> a_path("folder", "runs/demo").name
    'demo'
    """
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str):
            return Path(text)
    raise ArgumentError(f"{name} is {shown(value)}; it needs a path, as a string or a pathlib.Path")


def a_list(name: str, values: Iterable[KindT], kind: Kinds, needs: str) -> list[KindT]:
    """The values in a list, if each is of this kind; a string is no list of strings.

    >>> a_list("lines", ("a", "b"), str, "strings, one for each line")
    ['a', 'b']
    """
    items = list(each(name, values, needs))
    if kind in NUMBERS:
        items = [number_in(item) for item in items]
    for item in items:
        if not isinstance(item, kind) or (isinstance(item, bool) and kind in NUMBERS):
            raise ArgumentError(f"{name} holds {shown(item)}; it needs {needs}")
    return items


def each(name: str, values: Iterable[Any], needs: str) -> Iterator[Any]:
    """What there is to iterate over, if there is."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ArgumentError(f"{name} is {shown(values)}; it needs {needs}")
    try:
        return iter(values)
    except TypeError:  # a tensor without axes
        raise ArgumentError(f"{name} is {shown(values)}; it needs {needs}") from None


def number_in(value: Any) -> Any:
    """The Python number in a NumPy scalar, a 0-d array or a 0-d tensor without a gradient; anything else as it is.

    `regard.arguments.plain` raises where this leaves a tensor as it is.
    """
    if getattr(value, "ndim", None) != 0 or getattr(value, "requires_grad", False) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (RuntimeError, NotImplementedError, ValueError):  # a tensor on "meta" has no number
        return value
