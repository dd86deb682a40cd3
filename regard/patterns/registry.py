"""Declarations that have a name in texts: classes enrol themselves when they are defined, and a reader reads the texts.

Patterns, mechanisms, scores and feature maps are declarations. The name of a class in a text is its own name in lower
case (`SlidingWindow` is `sliding_window`), its arguments are those of the class, in parentheses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from inspect import Signature, signature
from itertools import chain
from typing import Any, ClassVar, TypeVar

from regard.arguments import suggest
from regard.errors import ArgumentError
from regard.patterns.arguments import MOST
from regard.patterns.ranges import Ranges
from regard.reprs import Described

WORDS = {"all": None, "true": True, "false": False}
DIGITS = 18  # of a whole number in a text
LONGEST = 10_000  # characters of a text
_WORD = re.compile(r"\s*([^\W\d]\w*|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)|\.\.|[()&|~,=])")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
Item = TypeVar("Item")
SIGNS_OF = {"and": "&", "or": "|", "not": "~"}

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


_signature: Callable[[type], Signature] = lru_cache(maxsize=64)(signature)


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
            holder = self.kinds.get(name)
            if holder is not None and is_importable(holder) and _path(holder) != _path(kind):
                raise ArgumentError(
                    f"the {self.what} {_path(kind)} would be {name!r} in a text, which is the name of {_path(holder)}; "
                    f"rename the class"
                )
            self.kinds[name] = kind
        self.aliases.update(also)

    def names(self) -> list[str]:
        """The names that a text may use, without second names."""
        return [name for name, kind in self._without_aliases() if kind.no_text is None]

    def of_package(self, package: str) -> dict[str, type[Declared]]:
        """The classes that are importable from a package, by name, without second names."""
        kinds = {}
        for name, kind in self._without_aliases():
            if f"{kind.__module__}.".startswith(f"{package}.") and is_importable(kind):
                kinds[name] = kind
        return kinds

    def _without_aliases(self) -> list[tuple[str, type[Declared]]]:
        return [(name, kind) for name, kind in self.kinds.items() if name not in self.aliases]


class Declared(Described):
    """A value that is written as `name(arguments)`; its subclasses enrol themselves in the registry of their family.

    A subclass is enrolled wherever it is defined, your own program included, so that its text reads back. It needs
    arguments that are numbers, true, false or `all` (None). `class Mine(Pattern, enrol=False)` stays out, and
    `also=("other",)` adds a second name.
    """

    registry: ClassVar[Registry]
    text_name: ClassVar[str]
    no_text: ClassVar[str | None] = None  # why a text cannot hold it, where that is so

    def __init_subclass__(
        cls, *, enrol: bool = True, also: tuple[str, ...] = (), **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        cls.text_name = cls.__dict__.get("text_name", text_name(cls))
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
    words = []
    by_name = False
    for field in getattr(kind, "__dataclass_fields__", ()):
        by_place = field in kind.__match_args__
        if not by_place and kind.__dataclass_fields__[field].kw_only is not True:
            continue  # a field that is no argument
        value = getattr(declared, field)
        by_name = by_name or not by_place or hasattr(kind, field)
        if not by_name:
            words.append(word(value))
        elif field in shown or not hasattr(kind, field) or value != getattr(kind, field):
            words.append(f"{field}={word(value)}")
    return _called_with(kind, words)


def _called_with(kind: type[Declared], arguments: list[str]) -> str:
    """The name of a class with its arguments, and without parentheses where there are none."""
    return f"{kind.text_name}({', '.join(arguments)})" if arguments else kind.text_name


def usage(kind: type[Declared]) -> str:
    """The name of a class with its arguments and their defaults, as a text writes them.

    >>> class Fixed:
    ...     text_name = "fixed"
    ...     def __init__(self, stride, summary=1, local=True): ...
    >>> usage(Fixed)
    'fixed(stride, summary=1, local=true)'
    """
    arguments = []
    for name, parameter in signature(kind).parameters.items():
        has_default = parameter.default is not parameter.empty
        arguments.append(f"{name}={word(parameter.default)}" if has_default else name)
    return _called_with(kind, arguments)


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
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def is_importable(kind: type) -> bool:
    """Whether the class is what its module holds under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Reader:
    """Reads a text of names, numbers and signs from left to right; with `operators`, & | ~ may join names.

    Args:
        text: the text.
        registry: the family whose names may begin it.
        example: a text of this family, which messages show.
    """

    operators = False

    def __init__(self, text: str, registry: Registry, example: str) -> None:
        if not isinstance(text, str):
            raise ArgumentError(f"a {registry.what}'s text is a string; this is {text!r}")
        if len(text) > LONGEST:
            raise ArgumentError(
                f"a {registry.what}'s text of {len(text)} characters; {LONGEST} are read at most"
            )
        self.text, self.registry, self.example = text, registry, example
        self.words: list[tuple[str, int]] = []
        self.at = 0
        self.positions_read = 0
        self.flags: set[str] = set()  # arguments of the class being read that are false by default
        end = len(text.rstrip())
        place = 0
        while place < end:
            match = _WORD.match(text, place)
            if match is None:
                raise self.error(f"{text[place:].strip()[:20]!r} is not understood", place)
            self.words.append((match.group(1), match.start(1)))
            place = match.end()

    def whole(self) -> Any:
        """The declaration that the whole text describes."""
        declared = self.item()
        if self.at < len(self.words):
            word = self.peek()
            is_operator = self.operators and word in SIGNS_OF
            raise self.error(
                f"{_shortened(word)!r} follows a {self.registry.what} that is already complete",
                hint=_in_place_of(word) if is_operator else "",
            )
        return declared

    def item(self) -> Any:
        """One declaration; families with operators read a whole expression."""
        return self.named(self.registry)

    def named(self, registry: Registry) -> Any:
        """A name of the registry and what follows it."""
        name = self.peek()
        kind = registry.kinds.get(name)
        if kind is None:
            raise self._no_such_name(name, registry)
        reason = self.unreadable(kind)
        if reason is not None:
            raise self.error(f"{name!r} is no {registry.what} that a text can hold: {reason}")
        self.at += 1
        return kind.read(self)

    def _no_such_name(self, name: str, registry: Registry) -> ArgumentError:
        if not name:
            return self.error(f"a {registry.what} is missing")
        if name in SIGNS_OF and self.operators:
            return self.error(f"{name!r} is no {registry.what}", hint=_in_place_of(name))
        return self.error(
            f"there is no {registry.what} {_shortened(name)!r}",
            hint=suggest(name, registry.names(), registry.command),
        )

    def unreadable(self, kind: type[Declared]) -> str | None:
        """Why this reader does not read a class of the registry, or None."""
        return kind.no_text

    def called(self, kind: type) -> Any:
        """An object of a class whose arguments stand in parentheses, by place and then by name."""
        name = self.words[self.at - 1][0]
        takes = _signature(kind)
        flags_of_outer = self.flags
        self.flags = {flag for flag, taken in takes.parameters.items() if taken.default is False}
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        first_word = self.at
        for argument, value in self.listed(self.argument):
            if argument is None and not by_name:
                by_place.append(value)
            elif argument is not None and argument not in by_name:
                by_name[argument] = value
            else:
                raise self.error(f"arguments of {name} come by place first, then each name once")
        self.flags = flags_of_outer
        try:
            takes.bind(*by_place, **by_name)
        except TypeError:
            raise self._misfit(name, first_word, list(takes.parameters), by_name) from None
        return kind(*by_place, **by_name)

    def _misfit(
        self, name: str, first_word: int, takes: list[str], by_name: dict[str, Any]
    ) -> ArgumentError:
        """The error for arguments that a class does not take; it shows the wrong name, or else the whole list."""
        if not takes:
            return self.error(f"{name} takes no arguments", self._place_of(first_word))
        strange = next((argument for argument in by_name if argument not in takes), None)
        if strange is None:
            return self.error(f"{name} takes ({', '.join(takes)})", self._place_of(first_word))
        place = next(place for word, place in self.words[first_word:] if word == strange)
        return self.error(
            f"{name} has no argument {_shortened(strange)!r}; it takes {', '.join(takes)}", place
        )

    def listed(self, read: Callable[[], Item]) -> list[Item]:
        """The items between the parentheses that may follow a name."""
        items: list[Item] = []
        if not self.take("("):
            return items
        while not self.take(")"):
            if items and not self.take(","):
                raise self.error("')' is missing" if not self.peek() else "',' or ')' is missing")
            items.append(read())
        return items

    def argument(self) -> tuple[str | None, Any]:
        """The name of an argument, None for one given by place, and its value."""
        name = self.peek()
        if self.peek(1) == "=":
            self.at += 2
            return name, self.value()
        return None, self.value()

    def value(self) -> Any:
        """The value of an argument: a number, a word, or a list of numbers in parentheses."""
        if self.peek() == "(":
            return tuple(self.listed(self.number))
        if self.peek() not in WORDS:
            return self.number("a whole number, all, true or false")
        self.at += 1
        return WORDS[self.words[self.at - 1][0]]

    def number(self, wanted: str = "a whole number") -> int | float:
        """A number."""
        match = _NUMBER.fullmatch(self.peek())
        if not match or len(self.peek().lstrip("-")) > DIGITS + 6 * bool(match[1] or match[2]):
            raise self.error(f"{wanted} is missing")
        self.at += 1
        return float(match[0]) if match[1] or match[2] else int(match[0])

    def spans(self) -> Ranges:
        """The spans of positions between parentheses, such as (0, 5..9), both ends included."""
        return tuple(self.listed(self._span))

    def positions(self) -> Iterator[int]:
        """The positions between parentheses, one after the other."""
        spans = self.spans()
        self.positions_read += sum(map(len, spans))
        if self.positions_read > MOST:
            raise self.error(
                f"global_tokens name more than {MOST} positions; for a long span there is key_span"
            )
        return chain.from_iterable(spans)

    def _span(self) -> range:
        first = self.number()
        last = self.number() if self.take("..") else first
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last):
            raise self.error(f"{first}..{last} is no span of positions from 0")
        return range(first, last + 1)

    def peek(self, further: int = 0) -> str:
        """The next word, or the one `further` words after it; "" past the end."""
        number = self.at + further
        return self.words[number][0] if number < len(self.words) else ""

    def take(self, sign: str) -> bool:
        """Skips the next word if it is this sign, and returns whether it was."""
        taken = self.peek() == sign
        self.at += taken
        return taken

    def need(self, sign: str) -> None:
        """Skips the next word, which must be this sign."""
        if not self.take(sign):
            raise self.error(f"{sign!r} is missing")

    def error(self, reason: str, place: int | None = None, hint: str = "") -> ArgumentError:
        """An error that names the place, by default that of the next word, and a way out."""
        if place is None:
            place = self._place_of(self.at)
        shown = _shortened(self.text)
        hint = hint or f"an example is '{self.example}'"
        return ArgumentError(
            f"cannot read the {self.registry.what} {shown!r} at character {place + 1}: {reason}; {hint}"
        )

    def _place_of(self, number: int) -> int:
        """Where the word of this number begins in the text; its end, if there are not so many."""
        return self.words[number][1] if number < len(self.words) else len(self.text)


def _in_place_of(word: str) -> str:
    return f"write {SIGNS_OF[word]!r} in place of {word!r}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
