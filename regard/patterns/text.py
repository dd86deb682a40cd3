"""Patterns as text: `causal & (strided(64) | global_tokens(0..3))`, the same algebra as in Python.

A compiled graph carries a pattern that holds tensors as a text and a list of tensors. In such a text a tensor is
written as its place in the list: `causal & key_span(0, tensor_0)`; it is only read together with its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.arguments import is_whole, kind_of
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns.algebra import Full, Many, Not, both, either
from regard.patterns.base import MOST_LEVELS, Pattern
from regard.patterns.documents import PackedDocuments
from regard.patterns.held import HOLDS_TENSOR
from regard.patterns.per_head import PerHead
from regard.patterns.registry import Declared, Reader, word

_PLACE = re.compile(r"tensor_(\d+)")
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
            raise self.error(
                f"{parts} patterns are named, and {MOST_PARTS} are the most", self.words[-1][1]
            )

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
        if self.depth > MOST_LEVELS:
            raise self.error(f"more than {MOST_LEVELS} levels")
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


def written_apart(
    pattern: Pattern, steady: Callable[[Pattern], Pattern]
) -> tuple[str, list[torch.Tensor]]:
    """The text of a pattern, and the tensors that the text names by their place.

    A compiler follows this call, so it reads plain attributes and no serial: a graph serves every pattern that differs
    in its tensors only.

    Args:
        pattern: the pattern.
        steady: returns a pattern of numbers as one that can be written.

    Raises:
        UnsupportedError: a part that holds something other than tensors and numbers, such as a function.
    """
    tensors: list[torch.Tensor] = []
    return _text(pattern, steady, tensors), tensors


def read_together(text: str, tensors: Sequence[torch.Tensor]) -> Pattern:
    """The pattern of a text and its tensors, as `written_apart` returns them.

    >>> print(read_together("causal & key_span(0, tensor_0)", [torch.tensor([1, 2])]))
    causal & key_span(0, <2 numbers>)
    """
    return _HeldReader(text, tensors).whole()


def _text(
    pattern: Pattern, steady: Callable[[Pattern], Pattern], tensors: list[torch.Tensor]
) -> str:
    if pattern.by_value:
        return str(steady(pattern))
    if isinstance(pattern, Many):
        parts = [_inner(part, steady, tensors) for part in pattern.parts]
        return "(" + f" {pattern.sign} ".join(parts) + ")"
    if isinstance(pattern, Not):
        return f"~{_inner(pattern.part, steady, tensors)}"
    if isinstance(pattern, PerHead):
        parts = [_text(part, steady, tensors) for part in pattern.parts]
        return f"per_head({', '.join(parts)})"
    if isinstance(pattern, PackedDocuments):
        inner = pattern.inner
        if not isinstance(inner, str):
            inner = _text(inner, steady, tensors)
        first = len(tensors)
        if pattern.ids is not None:
            tensors.append(pattern.ids)
            return f"({inner}) & same_document(tensor_{first})"
        tensors += [pattern.q_ends, pattern.k_ends]
        return f"{pattern.text_name}({inner}, tensor_{first}, tensor_{first + 1})"
    words = []
    kind: Any = type(pattern)
    for field in kind.__match_args__:
        value = getattr(pattern, field)
        if isinstance(value, torch.Tensor):
            words.append(f"{field}=tensor_{len(tensors)}")
            tensors.append(value)
        elif is_whole(value):
            words.append(f"{field}={word(int(value))}")
        elif value is None or isinstance(value, bool | float):
            words.append(f"{field}={word(value)}")
        else:
            raise UnsupportedError(
                f"pattern {pattern!s} holds more than tensors and numbers, and a compiled call carries only these; "
                f"call attention outside of torch.compile, where this works"
            )
    return f"{kind.text_name}({', '.join(words)})"


def _inner(
    pattern: Pattern, steady: Callable[[Pattern], Pattern], tensors: list[torch.Tensor]
) -> str:
    """The text of a part, in parentheses where the operators around it would bind its own parts."""
    text = _text(pattern, steady, tensors)
    return f"({text})" if pattern.by_value and isinstance(pattern, Many) else text


class _HeldReader(PatternReader):
    """Reads places in a list of tensors as values too."""

    def __init__(self, text: str, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(text)
        self.tensors = tensors

    def unreadable(self, kind: type[Declared]) -> str | None:
        if kind.no_text == HOLDS_TENSOR:
            return None
        return super().unreadable(kind)

    def value(self) -> Any:
        place = _PLACE.fullmatch(self.peek())
        if place is None or int(place[1]) >= len(self.tensors):
            return super().value()
        self.at += 1
        return self.tensors[int(place[1])]
