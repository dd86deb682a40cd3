"""Mechanisms as text: `performer(features=256)`, for configs and command lines.

A text chooses among the names below and hands them numbers and words; it never names code.
"""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

from regard.errors import ArgumentError
from regard.mechanisms import (
    LSH,
    EluPlusOne,
    LinearTransformer,
    Linformer,
    Mechanism,
    Performer,
    Products,
    RandomFeature,
    Relu,
    SignedSoftmax,
    Softmax,
)

MECHANISMS: dict[str, type[Mechanism]] = {
    "softmax": Softmax,
    "linear": LinearTransformer,
    "performer": Performer,
    "random-feature": RandomFeature,
    "linformer": Linformer,
    "lsh": LSH,
}
WORDS = {
    "true": True,
    "false": False,
    "elu-plus-one": EluPlusOne(),
    "relu": Relu(),
    "signed-softmax": SignedSoftmax(),
    "products": Products(),
}
_WHOLE = re.compile(r"\s*([a-z_-]+)\s*(?:\((.*)\))?\s*")
_ARGUMENT = re.compile(r"\s*(?:([a-z_]+)\s*=)?\s*([a-z_-]+|-?\d{1,18}(?:\.\d{1,18})?)\s*")


def parse_mechanism(text: str) -> Mechanism:
    """The mechanism that a text describes: a name, and in parentheses what its class takes, by place or name=value.

    Values are numbers, true, false, and words: feature maps by name, such as signed-softmax, or a choice, such as
    keys_and_values. A hyphen and an underscore in a name are the same.

    Raises:
        ArgumentError: a text that is no mechanism, or one that cannot be.

    >>> print(parse_mechanism("performer(features=256)"))
    performer(256, seed=0)
    >>> print(parse_mechanism("linear(signed-softmax)"))
    linear_transformer(signed_softmax)
    """
    match = _WHOLE.fullmatch(text) if isinstance(text, str) else None
    kind = MECHANISMS.get(match[1].replace("_", "-")) if match else None
    if match is None or kind is None:
        raise ArgumentError(
            f"{_shown(text)} is no mechanism; there are {', '.join(MECHANISMS)}, with arguments such as "
            f"performer(features=256)"
        )
    if kind is Softmax and (match[2] or "").strip():
        raise ArgumentError(f"{_shown(text)}: in text, softmax takes no argument")
    by_place, by_name = _arguments(text, match[2])
    try:
        signature(kind).bind(*by_place, **by_name)
    except TypeError:
        takes = ", ".join(signature(kind).parameters)
        raise ArgumentError(f"{_shown(text)} cannot be read; {match[1]} takes ({takes})") from None
    return kind(*by_place, **by_name)


def _arguments(text: str, inside: str | None) -> tuple[list[Any], dict[str, Any]]:
    by_place: list[Any] = []
    by_name: dict[str, Any] = {}
    for part in inside.split(",") if inside and inside.strip() else ():
        argument = _ARGUMENT.fullmatch(part)
        if argument is None or (argument[1] is None and by_name) or argument[1] in by_name:
            raise ArgumentError(
                f"{_shown(text)}: {part.strip()!r} is not understood; arguments are numbers and words, by place first "
                f"and then each name once"
            )
        if argument[1] is None:
            by_place.append(_value(argument[2]))
        else:
            by_name[argument[1]] = _value(argument[2])
    return by_place, by_name


def _value(word: str) -> Any:
    if word[-1].isdigit():
        return float(word) if "." in word else int(word)
    return WORDS.get(word.replace("_", "-"), word)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
