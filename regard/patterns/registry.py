"""Declarations that have a name in texts: classes enrol themselves when they are defined.

Patterns, mechanisms, scores and feature maps are declarations. The name of a class in a text is its own name in lower
case (`SlidingWindow` is `sliding_window`), its arguments are those of the class. `patterns/reader.py` reads the texts.
"""

from __future__ import annotations

import re
import sys
from inspect import signature
from typing import Any, ClassVar

from regard.errors import ArgumentError
from regard.reprs import Described

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Registry:
    """The classes of one family by their names in a text.

    Args:
        what: what one of them is called in messages, such as "pattern".
        command: prints all names, if they are too many for a message.
    """

    def __init__(self, what: str, command: str = "") -> None:
        self.what, self.command = what, command
        self.kinds: dict[str, type[Declared]] = {}
        self.aliases: set[str] = set()

    def enrol(self, kind: type[Declared], also: tuple[str, ...] = ()) -> None:
        """Add a class under its own name and under the names of `also`.

        A class defined inside a function is not added, since it exists only during the call. A class defined again
        under the same path, as when a notebook cell runs twice, replaces the earlier one.

        Raises:
            ArgumentError: the name belongs to another class.
        """
        if "<locals>" in kind.__qualname__:
            return
        for name in (kind.text_name, *also):
            other = self.kinds.get(name)
            if other is not None and is_importable(other) and _path(other) != _path(kind):
                raise ArgumentError(
                    f"the {self.what} {_path(kind)} would be {name!r} in a text, which is the name of {_path(other)}; "
                    f"rename the class"
                )
            self.kinds[name] = kind
        self.aliases.update(also)

    def names(self) -> list[str]:
        """The names that a text may use, without second names."""
        return [name for name, kind in self.kinds.items() if kind.no_text is None and name not in self.aliases]

    def of_package(self, package: str) -> dict[str, type[Declared]]:
        """The classes that are importable from a package, by name, without second names."""
        own = {name: kind for name, kind in self.kinds.items() if name not in self.aliases}
        return {name: kind for name, kind in own.items() if _in(package, kind) and is_importable(kind)}


class Declared(Described):
    """A value that is written as `name(arguments)`; its subclasses enrol themselves in the registry of their family.

    A subclass is enrolled wherever it is defined, your own program included, so that its text reads back. It needs
    arguments that are numbers, true, false or `all` (None). `class Mine(Pattern, enrol=False)` stays out, and
    `also=("other",)` adds a second name.
    """

    registry: ClassVar[Registry]
    text_name: ClassVar[str]
    no_text: ClassVar[str | None] = None  # why a text cannot hold it, where that is so

    def __init_subclass__(cls, *, enrol: bool = True, also: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.text_name = text_name(cls)
        if enrol:
            cls.registry.enrol(cls, also)

    @classmethod
    def read(cls, reader: Any) -> Any:
        """Reads what follows the name in a text, from a `reader.Reader`; the arguments of the class by default."""
        return reader.called(cls)

    def __str__(self) -> str:
        return written(self)


def text_name(kind: type) -> str:
    """The name of a class in a text.

    >>> class DilatedLSHWindow: pass
    >>> text_name(DilatedLSHWindow)
    'dilated_lsh_window'
    """
    return _CAPITAL.sub("_", kind.__name__).lower()


def written(declared: Declared, *shown: str) -> str:
    """The text of a dataclass: its name and the fields that differ from their default.

    A compiler follows this call, so it reads plain attributes that the class already has.

    Args:
        declared: the value.
        shown: names of fields that are written even where they are the default.
    """
    kind: Any = type(declared)
    words, by_name = [], False
    for field in getattr(kind, "__dataclass_fields__", ()):
        by_place = field in kind.__match_args__
        if not by_place and kind.__dataclass_fields__[field].kw_only is not True:
            continue  # a field that is no argument
        value, by_name = getattr(declared, field), by_name or not by_place or hasattr(kind, field)
        if not by_name:
            words.append(word(value))
        elif field in shown or not hasattr(kind, field) or value != getattr(kind, field):
            words.append(f"{field}={word(value)}")
    return f"{kind.text_name}({', '.join(words)})" if words else kind.text_name


def usage(kind: type[Declared]) -> str:
    """The name of a class with its arguments and their defaults, as a text writes them.

    >>> class Fixed:
    ...     text_name = "fixed"
    ...     def __init__(self, stride, summary=1, local=True): ...
    >>> usage(Fixed)
    'fixed(stride, summary=1, local=true)'
    """
    takes = signature(kind).parameters.values()
    parts = [one.name if one.default is one.empty else f"{one.name}={word(one.default)}" for one in takes]
    return f"{kind.text_name}({', '.join(parts)})" if parts else kind.text_name


def word(value: object) -> str:
    """A value as a text writes it.

    >>> [word(value) for value in (None, True, 0.5, 2.0, (4, 8))]
    ['all', 'true', '0.5', '2', '(4, 8)']
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(word, value))})"
    if value is None:
        return "all"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def is_importable(kind: type) -> bool:
    """Whether the class is what its module holds under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _in(package: str, kind: type) -> bool:
    return f"{kind.__module__}.".startswith(f"{package}.")
