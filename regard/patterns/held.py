"""A pattern that holds tensors as a text and a list of tensors, which is how a compiled graph carries it.

In the text a tensor is written as its place in the list: `causal & key_span(0, tensor_0)`. Texts of this kind are only
read together with their tensors; `parse` refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.arguments import is_whole
from regard.errors import UnsupportedError
from regard.patterns.algebra import Many, Not
from regard.patterns.base import Pattern
from regard.patterns.per_head import PerHead
from regard.patterns.registry import Declared, word
from regard.patterns.text import PatternReader

HOLDS_TENSOR = "it holds a tensor"
_PLACE = re.compile(r"tensor_(\d+)")


def written_apart(pattern: Pattern, steady: Callable[[Pattern], Pattern]) -> tuple[str, list[torch.Tensor]]:
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


def _text(pattern: Pattern, steady: Callable[[Pattern], Pattern], tensors: list[torch.Tensor]) -> str:
    if pattern.by_value:
        return str(steady(pattern))
    if isinstance(pattern, Many):
        parts = [_inner(part, steady, tensors) for part in pattern.parts]
        return "(" + f" {pattern.sign} ".join(parts) + ")"
    if isinstance(pattern, Not):
        return f"~{_inner(pattern.part, steady, tensors)}"
    if isinstance(pattern, PerHead):
        return f"per_head({', '.join([_text(part, steady, tensors) for part in pattern.parts])})"
    words = []
    kind: Any = type(pattern)
    for field in kind.__match_args__:
        value = getattr(pattern, field)
        if isinstance(value, torch.Tensor):
            words.append(f"{field}=tensor_{len(tensors)}")
            tensors.append(value)
        elif value is None or isinstance(value, bool | float) or is_whole(value):
            words.append(f"{field}={word(int(value) if is_whole(value) else value)}")
        else:
            raise UnsupportedError(
                f"pattern {pattern!s} holds more than tensors and numbers, and a compiled call carries only these; "
                f"call attention outside of torch.compile, where this works"
            )
    return f"{kind.text_name}({', '.join(words)})"


def _inner(pattern: Pattern, steady: Callable[[Pattern], Pattern], tensors: list[torch.Tensor]) -> str:
    """The text of a part, in parentheses where the operators around it would bind its own parts."""
    text = _text(pattern, steady, tensors)
    return f"({text})" if pattern.by_value and isinstance(pattern, Many) else text


class _HeldReader(PatternReader):
    """Reads places in a list of tensors as values too."""

    def __init__(self, text: str, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(text)
        self.tensors = tensors

    def unreadable(self, kind: type[Declared]) -> str | None:
        return None if kind.no_text == HOLDS_TENSOR else super().unreadable(kind)

    def value(self) -> Any:
        place = _PLACE.fullmatch(self.peek())
        if place is None or int(place[1]) >= len(self.tensors):
            return super().value()
        self.at += 1
        return self.tensors[int(place[1])]
