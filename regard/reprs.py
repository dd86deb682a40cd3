"""Short reprs: an object on one line, with the sizes of what would be long."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import PurePath
from typing import Any, TypeVar

KindT = TypeVar("KindT", bound=type)
FEW = 4  # values of a collection that are shown
LONGEST = 48  # characters of one value


def brief(kind: KindT) -> KindT:
    """A decorator of dataclasses: the repr leaves out what equals its default, and gives sizes of what is long.

    >>> from dataclasses import dataclass
    >>> @brief
    ... @dataclass
    ... class Weights:
    ...     of: str
    ...     numbers: list[int]
    ...     scale: float = 1.0
    >>> Weights("a word", list(range(1000)))
    Weights(of='a word', numbers=<list of 1,000>)
    """
    kind.__repr__ = _brief_repr  # ty: ignore[invalid-assignment]
    return kind


class Described:
    """A base whose repr names the attributes of an object that are public, as `brief` writes them."""

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return _written(self, shown)


def brief_value(value: object) -> str:
    """A value in a few characters.

    >>> import torch
    >>> brief_value(torch.zeros(2, 3)), brief_value((1, 2)), brief_value(["word"] * 99)
    ('<tensor (2, 3) float32>', '(1, 2)', '<list of 99>')
    """
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and shape is not None:
        return f"<{type(value).__name__.lower()} {(*shape,)} {str(dtype).removeprefix('torch.')}>"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, Mapping) or (isinstance(value, Collection) and not is_dataclass(value)):
        return _brief_collection(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"<{getattr(value, '__name__', 'function').strip('<>')}>"
    text = repr(value)
    return (
        text
        if len(text) <= LONGEST and "\n" not in text and " at 0x" not in text
        else f"<{type(value).__name__}>"
    )


def _brief_collection(values: Collection[Any]) -> str:
    name = type(values).__name__
    if len(values) > FEW and isinstance(values, tuple) and (run := _as_range(values)) is not None:
        return repr(run)
    if len(values) > FEW:
        return f"<{name} of {len(values):,}>"
    parts = [*values, *values.values()] if isinstance(values, Mapping) else [*values]
    plain = all(isinstance(part, str | int | float | bool | None) for part in parts)
    text = repr(values)
    return (
        text
        if plain and len(text) <= 2 * LONGEST
        else f"<{name} of {len(values):,}>"
        if values
        else text
    )


def _as_range(values: tuple[Any, ...]) -> range | None:
    """The range with these values, if they are consecutive whole numbers."""
    if not all(type(value) is int for value in values):
        return None
    run = range(values[0], values[-1] + 1)
    return run if len(run) == len(values) and all(map(int.__eq__, run, values)) else None


def _brief_repr(self: Any) -> str:
    shown = {}
    for one in fields(self):
        value = getattr(self, one.name)
        standard = one.default if one.default_factory is MISSING else one.default_factory()
        if one.repr and not (standard is not MISSING and _alike(value, standard)):
            shown[one.name] = value
    return _written(self, shown)


def _alike(value: object, standard: object) -> bool:
    return value is standard or (
        type(value) is type(standard) and not hasattr(value, "shape") and value == standard
    )


def _written(self: object, shown: Mapping[str, object]) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={brief_value(value)}' for name, value in shown.items())})"
