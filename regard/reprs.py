"""Short reprs: an object on one line, with the sizes of what would be long."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import PurePath
from typing import Any, TypeVar

KindT = TypeVar("KindT", bound=type)
LISTED_VALUES = 4  # of a collection; of a longer one its length is shown
VALUE_CHARACTERS = 48


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
        return _repr_of(self, shown)


def brief_value(value: object) -> str:
    """A value in a few characters.

    >>> import torch
    >>> brief_value(torch.zeros(2, 3)), brief_value((1, 2)), brief_value(["word"] * 99)
    ('<tensor (2, 3) float32>', '(1, 2)', '<list of 99>')
    """
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and shape is not None:
        return f"<{kind.lower()} {(*shape,)} {str(dtype).removeprefix('torch.')}>"
    if isinstance(value, str):
        is_short = len(value) <= VALUE_CHARACTERS
        return repr(value if is_short else f"{value[: VALUE_CHARACTERS - 1]}…")
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, Mapping) or (isinstance(value, Collection) and not is_dataclass(value)):
        return _brief_collection(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"<{getattr(value, '__name__', 'function').strip('<>')}>"
    text = repr(value)
    if len(text) > VALUE_CHARACTERS or "\n" in text or " at 0x" in text:
        return f"<{kind}>"
    return text


def _brief_collection(values: Collection[Any]) -> str:
    length = f"<{type(values).__name__} of {len(values):,}>"
    if len(values) > LISTED_VALUES:
        run = _as_range(values) if isinstance(values, tuple) else None
        return length if run is None else repr(run)

    text = repr(values)
    parts = [*values, *values.values()] if isinstance(values, Mapping) else [*values]
    plain = all(isinstance(part, str | int | float | bool | None) for part in parts)
    if not values or (plain and len(text) <= 2 * VALUE_CHARACTERS):
        return text
    return length


def _as_range(values: tuple[Any, ...]) -> range | None:
    """The range with these values, if they are consecutive whole numbers."""
    if not all(type(value) is int for value in values):
        return None
    run = range(values[0], values[-1] + 1)
    return run if len(run) == len(values) and all(map(int.__eq__, run, values)) else None


def _brief_repr(self: Any) -> str:
    shown = {}
    for field in fields(self):
        value = getattr(self, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and not _equals(value, default):
            shown[field.name] = value
    return _repr_of(self, shown)


def _equals(value: object, default: object) -> bool:
    if value is default:
        return True
    return type(value) is type(default) and not hasattr(value, "shape") and value == default


def _repr_of(owner: object, shown: Mapping[str, object]) -> str:
    values = [f"{name}={brief_value(value)}" for name, value in shown.items()]
    return f"{type(owner).__qualname__}({', '.join(values)})"
