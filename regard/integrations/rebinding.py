"""Copies of functions of others in which names mean other functions; the original stays as it is.

A name in a module of another library is not changed, because other threads read it, and an interruption could not undo
the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CellType, FunctionType
from typing import Any

__all__ = ["with_functions"]


def with_functions(function: Any, functions: Mapping[str, Callable[..., Any]]) -> FunctionType:
    """A copy of a function, also inside its decorators, that finds these functions by these names.

    >>> def greet():
    ...     return name()
    >>> with_functions(greet, {"name": lambda: "regard"})()
    'regard'
    """
    attributes = dict(function.__dict__)
    names = function.__globals__
    cells = function.__closure__
    inner = attributes.get("__wrapped__")
    if inner is None:
        names = {**names, **functions}
    else:
        changed = with_functions(inner, functions)
        attributes["__wrapped__"] = changed
        cells = tuple(CellType(changed) if cell.cell_contents is inner else cell for cell in cells)
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(attributes)
    return copied
