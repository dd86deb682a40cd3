"""Patterns as text: `causal & (strided(64) | global_tokens(0..3))`, the same algebra as in Python."""

from __future__ import annotations

from regard.arguments import kind_of
from regard.errors import ArgumentError
from regard.patterns.algebra import Full, both, either
from regard.patterns.base import DEEPEST, Pattern
from regard.patterns.reader import Reader

MOST_PARTS = 128  # names of patterns in a text: a plan looks at each of them in every block


def parse(text: str) -> Pattern:
    """The pattern that a text describes; `&` binds tighter than `|`, and `~` tightest, as in Python.

    Names are those of the pattern classes, `SlidingWindow` being `sliding_window`; your own subclasses of Pattern are
    read as well. Arguments are numbers, true, false, `all` (no limit), and spans such as 0..7 with both ends.

    Raises:
        ArgumentError: a text that is no pattern; the message shows the place and the names there are.

    >>> parse("causal & (sliding_window(8) | key_span(0, 2))").count(4, 4)
    10
    >>> print(parse("strided(64, local=false) | global_tokens(0, 1, 2, 9)"))
    strided(64, local=false) | global_tokens(0..2, 9)
    """
    return PatternReader(text).whole()


def as_pattern(pattern: Pattern | str | None) -> Pattern:
    """The pattern of an argument `pattern=`, which may be a pattern, its text, or None for full."""
    if pattern is None:
        return Full()
    if isinstance(pattern, str):
        return parse(pattern)
    if not isinstance(pattern, Pattern):
        what = "a function of positions goes into Where(function)"
        if isinstance(pattern, type) or not callable(pattern):
            what = "a boolean mask goes into Explicit(mask)"
        raise ArgumentError(
            f"pattern is {kind_of(pattern)}; give a Pattern, its text such as 'causal & causal_window(512)', "
            f"or None ({what})"
        )
    return pattern


class PatternReader(Reader):
    """Adds the operators, one method for each level of binding."""

    operators = True

    def __init__(self, text: str) -> None:
        super().__init__(text, Pattern.registry, "causal & (sliding_window(8) | global_tokens(0))")
        self.depth = 0
        parts = sum(word in Pattern.registry.kinds for word, _ in self.words)
        if parts > MOST_PARTS:
            raise self.error(f"{parts} patterns are named, and {MOST_PARTS} are the most", self.words[-1][1])

    def item(self) -> Pattern:
        parts = [self._both()]
        while self.take("|"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else either(*parts)

    def _both(self) -> Pattern:
        parts = [self._single()]
        while self.take("&"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else both(*parts)

    def _single(self) -> Pattern:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} levels")
        try:
            if self.take("~"):
                return ~self._single()
            if self.take("("):
                pattern = self.item()
                self.need(")")
                return pattern
            return self.named(self.registry)
        finally:
            self.depth -= 1
