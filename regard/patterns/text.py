"""Patterns as text: `causal & (strided(64) | global_tokens(0..3))`, the same algebra as in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from itertools import chain
from typing import Any, TypeVar

from regard.errors import ArgumentError
from regard.patterns.algebra import both, either
from regard.patterns.arguments import MOST
from regard.patterns.base import Pattern
from regard.patterns.causal import Causal
from regard.patterns.compound import DEEPEST
from regard.patterns.diagonals import Diagonals
from regard.patterns.dilated import DilatedWindow
from regard.patterns.fixed import Fixed
from regard.patterns.full import Full
from regard.patterns.global_tokens import GlobalTokens
from regard.patterns.key_span import KeySpan
from regard.patterns.lattice import Lattice
from regard.patterns.per_head import PerHead
from regard.patterns.position_sets import KeySet, QuerySet
from regard.patterns.prefix import Prefix
from regard.patterns.random_blocks import RandomBlocks
from regard.patterns.same_block import SameBlock
from regard.patterns.strided import Strided
from regard.patterns.summary import Summary
from regard.patterns.window import CausalWindow, SlidingWindow

# Each name a text may use and the pattern it makes. Arguments are those of the class, by place or as name=value;
# the classes in LISTS take any number of positions or of patterns.
READABLE: dict[str, type[Pattern]] = {
    "full": Full,
    "causal": Causal,
    "sliding_window": SlidingWindow,
    "causal_window": CausalWindow,
    "dilated_window": DilatedWindow,
    "global_tokens": GlobalTokens,
    "random_blocks": RandomBlocks,
    "strided": Strided,
    "fixed": Fixed,
    "prefix": Prefix,
    "key_span": KeySpan,
    "per_head": PerHead,
    "diagonals": Diagonals,
    "lattice": Lattice,
    "same_block": SameBlock,
    "summary": Summary,
    "key_set": KeySet,
    "query_set": QuerySet,
}
LISTS = {GlobalTokens, KeySet, QuerySet, PerHead}
WORDS = {"all": None, "true": True, "false": False}
LONGEST = 10_000
MOST_PARTS = 128  # names of patterns in a text: a plan looks at each of them in every block
DIGITS = 18
_WORD = re.compile(r"\s*([a-z_]+|-?\d+|\.\.|[()&|~,=])")
Item = TypeVar("Item")
_NUMBER = re.compile(r"-?\d+")


def parse(text: str) -> Pattern:
    """The pattern that a text describes; `&` binds tighter than `|`, and `~` tightest, as in Python.

    Arguments are whole numbers, true, false, `all` where there is no end, and spans such as 0..7 with both ends.

    Raises:
        ArgumentError: a text that is no pattern; the message shows the place and the names there are.

    >>> parse("causal & (sliding_window(8) | key_span(0, 2))").count(4, 4)
    10
    >>> print(parse("strided(64, local=false) | global_tokens(0, 1, 2, 9)"))
    strided(64, local=false) | global_tokens(0..2, 9)
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a pattern's text is a string; this is {text!r}")
    if len(text) > LONGEST:
        raise ArgumentError(f"a pattern's text of {len(text)} characters; {LONGEST} are read at most")
    return _Reader(text).whole()


def as_pattern(pattern: Pattern | str | None) -> Pattern:
    """A pattern from whatever an argument `pattern=` may be: a pattern, its text, or None for full."""
    if pattern is None:
        return Full()
    if isinstance(pattern, str):
        return parse(pattern)
    if not isinstance(pattern, Pattern):
        raise ArgumentError(
            f"pattern is a {type(pattern).__name__}; give a Pattern, its text such as 'causal & causal_window(512)', "
            f"or None (a boolean mask goes into Explicit(mask))"
        )
    return pattern


class _Reader:
    """Reads a text from left to right; one method for each level of binding."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[tuple[str, int]] = []
        self.at = 0
        self.depth = 0
        self.named_positions = 0
        end = len(text.rstrip())
        place = 0
        while place < end:
            match = _WORD.match(text, place)
            if match is None:
                raise self._error(f"{text[place:].strip()[:20]!r} is not understood", place)
            self.words.append((match.group(1), match.start(1)))
            place = match.end()
        parts = sum(word in READABLE for word, _ in self.words)
        if parts > MOST_PARTS:
            raise self._error(f"{parts} patterns are named, and {MOST_PARTS} are the most", self.words[-1][1])

    def whole(self) -> Pattern:
        pattern = self.either()
        if self.at < len(self.words):
            raise self._error(f"{self.words[self.at][0]!r} follows a pattern that is already complete")
        return pattern

    def either(self) -> Pattern:
        parts = [self.both()]
        while self._take("|"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else either(*parts)

    def both(self) -> Pattern:
        parts = [self.single()]
        while self._take("&"):
            parts.append(self.single())
        return parts[0] if len(parts) == 1 else both(*parts)

    def single(self) -> Pattern:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._error(f"more than {DEEPEST} levels")
        try:
            if self._take("~"):
                return ~self.single()
            if self._take("("):
                pattern = self.either()
                self._need(")")
                return pattern
            return self.named()
        finally:
            self.depth -= 1

    def named(self) -> Pattern:
        name = self._peek()
        if name not in READABLE:
            raise self._error(f"{name!r} is no pattern" if name else "a pattern is missing")
        self.at += 1
        kind = READABLE[name]
        if kind is PerHead:
            return PerHead(self.listed(self.either))
        if kind in LISTS:
            return self.positions(kind, self.listed(self.span))
        return self.called(name, kind)

    def positions(self, kind: type[Pattern], spans: list[range]) -> Pattern:
        """The sets take spans as they are, `GlobalTokens` one position after the other."""
        if kind is KeySet:
            return KeySet(tuple(spans))
        if kind is QuerySet:
            return QuerySet(tuple(spans))
        self.named_positions += sum(map(len, spans))
        if self.named_positions > MOST:
            raise self._error(f"global_tokens name more than {MOST} positions; for a long span there is key_span")
        return GlobalTokens(chain.from_iterable(spans))

    def called(self, name: str, kind: type[Pattern]) -> Pattern:
        """A pattern with arguments by place and by name."""
        takes = signature(kind)
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        for argument, value in self.listed(self.argument):
            if argument is None and not by_name:
                by_place.append(value)
            elif argument is not None and argument not in by_name:
                by_name[argument] = value
            else:
                raise self._error(f"arguments of {name} come by place first, then each name once")
        try:
            takes.bind(*by_place, **by_name)
        except TypeError:
            raise self._error(f"{name} takes ({', '.join(takes.parameters)})") from None
        return kind(*by_place, **by_name)

    def listed(self, read: Callable[[], Item]) -> list[Item]:
        """What stands between the parentheses that may follow a name."""
        found: list[Item] = []
        if not self._take("("):
            return found
        while not self._take(")"):
            if found:
                self._need(",")
            found.append(read())
        return found

    def argument(self) -> tuple[str | None, int | bool | None]:
        word = self._peek()
        if self._peek(1) == "=":
            self.at += 2
            return word, self.value()
        return None, self.value()

    def value(self) -> int | bool | None:
        word = self._peek()
        if word not in WORDS:
            return self.number("a whole number, all, true or false")
        self.at += 1
        return WORDS[word]

    def span(self) -> range:
        first = self.number()
        last = self.number() if self._take("..") else first
        if not 0 <= first <= last:
            raise self._error(f"{first}..{last} is no span of positions from 0")
        return range(first, last + 1)

    def number(self, wanted: str = "a whole number") -> int:
        word = self._peek()
        if not _NUMBER.fullmatch(word) or len(word.lstrip("-")) > DIGITS:
            raise self._error(f"{wanted} is missing")
        self.at += 1
        return int(word)

    def _peek(self, further: int = 0) -> str:
        return self.words[self.at + further][0] if self.at + further < len(self.words) else ""

    def _take(self, word: str) -> bool:
        taken = self._peek() == word
        self.at += taken
        return taken

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._error(f"{word!r} is missing")

    def _error(self, reason: str, place: int | None = None) -> ArgumentError:
        if place is None:
            place = self.words[self.at][1] if self.at < len(self.words) else len(self.text)
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return ArgumentError(
            f"cannot read the pattern {shown!r}: {reason} at character {place + 1}; "
            f"patterns are {', '.join(READABLE)}, joined with & | ~ and parentheses"
        )
