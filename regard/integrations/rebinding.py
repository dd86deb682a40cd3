"""Copies of functions of another library in which some names mean other functions; the originals stay as they are.

The names in that library's own modules are not changed: other threads read them, and an interruption could leave them
changed.
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
