"""Random texts of patterns: each is a pattern that reads back, or is refused by a sentence of the family."""

import random

from regard.errors import RegardError
from regard.patterns import Pattern, parse
from tests.regard.fuzz.meanings import LEAVES, TENSORS, Places, build, plain_leaf

from .running import Found, each_case

SIGNS = [
    *"()&|~,=.-+*/<>[]{}:;'\"\\ \t\n0123456789",
    "..",
    "all",
    "true",
    "false",
    "None",
    "nan",
    "1e9",
    "é",
    "ß",
    "\0",
    "\u202e",
    "𝟙",
    "9" * 30,
    "9" * 5000,
    "~" * 70,
    "(" * 70,
    "local=",
    "seed=",
    "stride=",
    "-1",
    "0..3",
    "3..0",
    "0..99999999999",
]


def draw_text(draw: random.Random) -> str:
    """A text of names, numbers and signs; or a text of a pattern with some of its signs changed."""
    names = list(Pattern.registry.kinds)
    if draw.random() < 0.5:
        count = draw.randrange(1, 25)
        return "".join(draw.choice(names if draw.random() < 0.3 else SIGNS) for _ in range(count))
    signs = list(text_of_pattern(draw))
    for _ in range(draw.choice([0, 0, 1, 2])):
        signs[draw.randrange(len(signs))] = draw.choice([*SIGNS, ""])
    return "".join(signs)


def has_text(name: str) -> bool:
    """Whether a leaf of the fuzzer is a pattern that a text can hold."""
    kind = Pattern.registry.kinds.get(name)
    return kind is not None and kind.no_text is None and name not in TENSORS


def text_of_pattern(draw: random.Random) -> str:
    """The text of a random pattern."""
    names = list(filter(has_text, LEAVES))
    places = Places(1, 1, 9, 9, (0,))
    parts = []
    for _ in range(draw.randrange(1, 4)):
        parts.append(str(build(plain_leaf(draw, draw.choice(names), 9), places)))
    return draw.choice([" & ", " | ", "&~"]).join(parts)


def what_is_wrong(text: str, found: Found) -> str | None:
    """What is wrong with how a text is read or refused, or None."""
    try:
        pattern = parse(text)
        found.count("patterns")
        if parse(str(pattern)) != pattern:
            return f"is {pattern!s}, which reads back otherwise"
        if pattern.dense(4, 5).shape[-2:] != (4, 5):
            return "has a mask of another shape"
    except RegardError as refusal:
        found.count("refused")
        if not 15 < len(str(refusal)) < 3000:
            return f"is refused by {str(refusal)!r}"
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:90]}"
    return None


@each_case
def work(number: int, found: Found) -> None:
    """A case is one text: it is a pattern whose own text reads back as the same, or it is refused."""
    text = draw_text(random.Random(f"text {number}"))
    found.count("texts")
    wrong = what_is_wrong(text, found)
    if wrong is not None:
        found.wrong.append(f"text {number}: {text!r} {wrong}")
