"""Patterns as text: `causal & (causal_window(512) | key_span(0, 4))`, the same algebra as in Python."""

from __future__ import annotations

import re

from regard.errors import ArgumentError
from regard.patterns.base import Pattern
from regard.patterns.causal import Causal
from regard.patterns.full import Full
from regard.patterns.key_span import KeySpan
from regard.patterns.window import CausalWindow, SlidingWindow

# Each name a text may use, the pattern it makes, and how many numbers it takes: fewest and most.
READABLE: dict[str, tuple[type[Pattern], int, int]] = {
    "full": (Full, 0, 0),
    "causal": (Causal, 0, 0),
    "sliding_window": (SlidingWindow, 1, 1),
    "causal_window": (CausalWindow, 1, 1),
    "key_span": (KeySpan, 1, 2),
}
DEEPEST = 64
LONGEST = 10_000
_WORD = re.compile(r"\s*([a-z_]+|-?\d+|[()&|~,])")


def parse(text: str) -> Pattern:
    """The pattern that a text describes; `&` binds tighter than `|`, and `~` tightest, as in Python.

    Raises:
        ArgumentError: a text that is no pattern; the message shows the place and the names there are.

    >>> parse("causal & (sliding_window(8) | key_span(0, 2))").count(4, 4)
    10
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
        end = len(text.rstrip())
        place = 0
        while place < end:
            match = _WORD.match(text, place)
            if match is None:
                raise self._error(f"{text[place:].strip()[:20]!r} is not understood", place)
            self.words.append((match.group(1), match.start(1)))
            place = match.end()

    def whole(self) -> Pattern:
        pattern = self.either()
        if self.at < len(self.words):
            raise self._error(f"{self.words[self.at][0]!r} follows a pattern that is already complete")
        return pattern

    def either(self) -> Pattern:
        pattern = self.both()
        while self._take("|"):
            pattern = pattern | self.both()
        return pattern

    def both(self) -> Pattern:
        pattern = self.single()
        while self._take("&"):
            pattern = pattern & self.single()
        return pattern

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
        kind, fewest, most = READABLE[name]
        numbers = self.numbers() if self._take("(") else []
        if not fewest <= len(numbers) <= most:
            raise self._error(f"{name} takes {fewest} to {most} numbers, not {len(numbers)}")
        return kind(*numbers)

    def numbers(self) -> list[int]:
        found: list[int] = []
        while not self._take(")"):
            if found:
                self._need(",")
            word = self._peek()
            if not word.lstrip("-").isdigit() or len(word) > 18:
                raise self._error("a whole number is missing")
            found.append(int(word))
            self.at += 1
        return found

    def _peek(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

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
