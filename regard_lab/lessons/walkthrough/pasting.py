"""Two lines of Python that define every name which the lines of a walkthrough use, so that these can be pasted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Opening:
    """The call that made a walkthrough: the name of the function, its text, and the options that are not defaults."""

    function: str
    given: tuple[Any, ...]
    options: dict[str, Any]


class FileWeights(dict[str, torch.Tensor]):
    """Tensors by name that were read from a file, with its path, so that a walkthrough can say how to read them."""

    def __init__(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.path = path


def call_of(function: Callable[..., Any], asked: Mapping[str, Any]) -> Opening:
    """The call of a function with these values of its parameters.

    >>> call_of(sorted, {"iterable": "ba", "key": None, "reverse": True}).options
    {'reverse': True}
    """
    given, options = [], {}
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is not Parameter.KEYWORD_ONLY:
            given.append(asked[name])
        elif not _same(asked[name], parameter.default):
            options[name] = asked[name]
    return Opening(getattr(function, "__name__", ""), tuple(given), options)


def _same(value: Any, default: Any) -> bool:
    """Whether an option has its default; a tensor is compared by identity, since == would compare its numbers."""
    return value is default or (not isinstance(value, torch.Tensor) and value == default)


def opening_code(call: Opening, room: int = 88, measure: Callable[[str], int] = len) -> list[list[str]]:
    """The two statements, each as lines of at most `room` characters; `measure` gives the width of a text.

    >>> for lines in opening_code(Opening("walk", ("Life is short",), {"causal": True})): print(lines)
    ['from regard_lab.lessons.walkthrough import walk']
    ['globals().update(walk("Life is short", causal=True).names())']
    """
    names = f"import {call.function}{', read_weights' if 'weights' in call.options else ''}"
    statements = ("from regard_lab.lessons.walkthrough", f" {names}"), tuple(_pieces(call, room, measure))
    return [_filled(pieces, room, measure) for pieces in statements]


def _pieces(call: Opening, room: int, measure: Callable[[str], int]) -> Iterator[str]:
    """The second statement in pieces between which a line may end; none is in the middle of a string or name."""
    yield from ("globals().update(", f"{call.function}(")
    arguments = [list(_literal(value, room, measure)) for value in call.given]
    for name, value in call.options.items():
        pieces = list(_reading(value, room, measure) if name == "weights" else _literal(value, room, measure))
        arguments.append([f"{name}=", *pieces])
    for place, pieces in enumerate(arguments):
        yield from pieces[:-1]
        yield pieces[-1] + (", " if place < len(arguments) - 1 else "")
    yield from (")", ".names())")


def _reading(weights: Mapping[str, torch.Tensor], room: int, measure: Callable[[str], int]) -> Iterator[str]:
    """The call that reads given weights; tensors that came from no file have to be saved to one first."""
    path = weights.path if isinstance(weights, FileWeights) else "FILE"
    *before, last = _literal(path, room, measure)
    yield from ("read_weights(", *before, f"{last})")


def _literal(value: Any, room: int, measure: Callable[[str], int]) -> Iterator[str]:
    """A value as Python writes it; a list in its items, a string that is too long as adjacent literals."""
    if isinstance(value, str | Path):
        text = str(value)
        while measure(quoted(text)) > room - 2:
            end = 1
            while measure(quoted(text[: end + 1])) <= room - 2:
                end += 1
            yield quoted(text[:end])
            text = text[end:]
        yield quoted(text)
    elif isinstance(value, list | tuple):
        yield "["
        for item in value:
            *before, last = _literal(item, room, measure)
            yield from (*before, f"{last}, ")
        yield "]"
    else:
        yield repr(value)


def quoted(text: str) -> str:
    """A string as Python writes it, in double quotes where that needs no more escapes.

    >>> print(quoted("it's"), quoted('"it"'), quoted("a\\n"))
    "it's" '"it"' "a\\n"
    """
    written = repr(text)
    return written if '"' in written else f'"{written[1:-1]}"'


def _filled(pieces: tuple[str, ...], room: int, measure: Callable[[str], int]) -> list[str]:
    """As many pieces in each line as fit; a line that is not inside brackets ends in a backslash."""
    lines = [""]
    for piece in pieces:
        if lines[-1] and measure(lines[-1] + piece.rstrip()) > room:
            lines[-1] = lines[-1].rstrip() + (" \\" if piece.startswith(" import") else "")
            lines.append("")
            piece = piece.lstrip()
        lines[-1] += piece
    return lines
