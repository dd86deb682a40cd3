"""What the texts of all families share: a name, and arguments in parentheses, read from left to right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import chain
from typing import Any, TypeVar

from regard.arguments import suggest
from regard.errors import ArgumentError
from regard.patterns.arguments import MOST
from regard.patterns.ranges import Ranges
from regard.patterns.registry import Declared, Registry

WORDS = {"all": None, "true": True, "false": False}
DIGITS = 18  # of a whole number in a text
LONGEST = 10_000  # characters of a text
_WORD = re.compile(r"\s*([^\W\d]\w*|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)|\.\.|[()&|~,=])")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
Item = TypeVar("Item")
SIGNS_OF = {"and": "&", "or": "|", "not": "~"}


class Reader:
    """Reads a text of names, numbers and signs from left to right; `operators` says that & | ~ may join names.

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
            raise ArgumentError(f"a {registry.what}'s text of {len(text)} characters; {LONGEST} are read at most")
        self.text, self.registry, self.example = text, registry, example
        self.words: list[tuple[str, int]] = []
        self.at = 0
        self.positions_read = 0
        self.flags: set[str] = set()  # arguments of the class being read that are false by default
        end, place = len(text.rstrip()), 0
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
            hint = _in_place_of(word) if self.operators and word in SIGNS_OF else ""
            raise self.error(f"{_shortened(word)!r} follows a {self.registry.what} that is already complete", hint=hint)
        return declared

    def item(self) -> Any:
        """One declaration; families with operators read a whole expression."""
        return self.named(self.registry)

    def named(self, registry: Registry) -> Any:
        """A name of the registry and what follows it."""
        name = self.peek()
        kind = registry.kinds.get(name)
        if kind is None:
            if name in SIGNS_OF and self.operators:
                raise self.error(f"{name!r} is no {registry.what}", hint=_in_place_of(name))
            missing = f"there is no {registry.what} {_shortened(name)!r}" if name else f"a {registry.what} is missing"
            raise self.error(missing, hint=suggest(name, registry.names(), registry.command) if name else "")
        if (reason := self.unreadable(kind)) is not None:
            raise self.error(f"{name!r} is no {registry.what} that a text can hold: {reason}")
        self.at += 1
        return kind.read(self)

    def unreadable(self, kind: type[Declared]) -> str | None:
        """Why this reader does not read a class of the registry, or None."""
        return kind.no_text

    def called(self, kind: type) -> Any:
        """An object of a class whose arguments stand in parentheses, by place and then by name."""
        name, takes = self.words[self.at - 1][0], signature(kind)
        outer, self.flags = self.flags, {one for one, taken in takes.parameters.items() if taken.default is False}
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        began = self.at
        for argument, value in self.listed(self.argument):
            if argument is None and not by_name:
                by_place.append(value)
            elif argument is not None and argument not in by_name:
                by_name[argument] = value
            else:
                raise self.error(f"arguments of {name} come by place first, then each name once")
        self.flags = outer
        try:
            takes.bind(*by_place, **by_name)
        except TypeError:
            raise self._misfit(name, began, list(takes.parameters), by_name) from None
        return kind(*by_place, **by_name)

    def _misfit(self, name: str, began: int, takes: list[str], by_name: dict[str, Any]) -> ArgumentError:
        """The error for arguments that a class does not take; it shows the wrong name, or else the whole list."""
        strange = next((given for given in by_name if given not in takes), None)
        place = self.words[began][1] if began < len(self.words) else len(self.text)
        if strange is None or not takes:
            return self.error(f"{name} takes ({', '.join(takes)})" if takes else f"{name} takes no arguments", place)
        at = next(at for word, at in self.words[began:] if word == strange)
        return self.error(f"{name} has no argument {_shortened(strange)!r}; it takes {', '.join(takes)}", at)

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
        """The positions between parentheses, one after the other.

        Raises:
            ArgumentError: the whole text lists more than a million positions.
        """
        spans = self.spans()
        self.positions_read += sum(map(len, spans))
        if self.positions_read > MOST:
            raise self.error(f"global_tokens name more than {MOST} positions; for a long span there is key_span")
        return chain.from_iterable(spans)

    def _span(self) -> range:
        first = self.number()
        last = self.number() if self.take("..") else first
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last):
            raise self.error(f"{first}..{last} is no span of positions from 0")
        return range(first, last + 1)

    def peek(self, further: int = 0) -> str:
        """The next word, or the one `further` words after it; "" past the end."""
        return self.words[self.at + further][0] if self.at + further < len(self.words) else ""

    def take(self, sign: str) -> bool:
        """Skips the next word if it is this sign, and says whether it was."""
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
            place = self.words[self.at][1] if self.at < len(self.words) else len(self.text)
        shown = _shortened(self.text)
        hint = hint or f"an example is '{self.example}'"
        return ArgumentError(
            f"cannot read the {self.registry.what} {shown!r} at character {place + 1}: {reason}; {hint}"
        )


def _in_place_of(word: str) -> str:
    return f"write {SIGNS_OF[word]!r} in place of {word!r}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
