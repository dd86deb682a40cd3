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


def quoted(value: object) -> str:
    """A value on one short line; of a tensor or an array the shape.

    >>> quoted(["a"])
    "['a']"
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"a {type(value).__name__} of {dtype} with shape {(*shape,)}"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write the longest ones
        return f"a whole number of {value.bit_length()} bits"
    words = " ".join(repr(value).split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def of_kind(name: str, value: Any, kind: Kinds, needs: str) -> Any:
    """The value, if it is of this kind; where numbers are meant, the Python number in a NumPy scalar or a 0-d tensor.

    >>> of_kind("max_words", 3, int, "a whole number")
    3
    """
    value = _number_in(value) if kind in NUMBERS else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in NUMBERS):
        raise ArgumentError(f"{name} is {quoted(value)}; it needs {needs}")
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
    raise ArgumentError(f"{name} is {quoted(value)}; it needs a path, as a string or a pathlib.Path")


def a_list(name: str, values: Iterable[KindT], kind: Kinds, needs: str) -> list[KindT]:
    """The values in a list, if each is of this kind; a string is no list of strings.

    >>> a_list("lines", ("a", "b"), str, "strings, one for each line")
    ['a', 'b']
    """
    items = list(each(name, values, needs))
    if kind in NUMBERS:
        items = [_number_in(item) for item in items]
    for item in items:
        if not isinstance(item, kind) or (isinstance(item, bool) and kind in NUMBERS):
            raise ArgumentError(f"{name} holds {quoted(item)}; it needs {needs}")
    return items


def each(name: str, values: Iterable[Any], needs: str) -> Iterator[Any]:
    """What there is to iterate over, if there is."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ArgumentError(f"{name} is {quoted(values)}; it needs {needs}")
    try:
        return iter(values)
    except TypeError:  # a tensor without axes
        raise ArgumentError(f"{name} is {quoted(values)}; it needs {needs}") from None


def _number_in(value: Any) -> Any:
    """The Python number in a NumPy scalar, a 0-d array or a 0-d tensor without a gradient; anything else as it is.

    `regard.arguments.plain` is the same with a sentence of its own for tensors; it needs torch.
    """
    if getattr(value, "ndim", None) != 0 or getattr(value, "requires_grad", False) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (RuntimeError, NotImplementedError, ValueError):  # a tensor on "meta" has no number
        return value
