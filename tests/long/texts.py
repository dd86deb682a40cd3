"""Random texts of patterns: each is a pattern that reads back, or is refused by a sentence of the family."""

import random

from regard.errors import RegardError
from regard.patterns import Pattern, parse
from tests.regard.fuzz.meanings import LEAVES, TENSORS, Places, build, plain_leaf

from .running import Found, each

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


def text(draw: random.Random) -> str:
    """A text of names, numbers and signs; or a text of a pattern with some of its signs changed."""
    names = list(Pattern.registry.kinds)
    if draw.random() < 0.5:
        return "".join(
            draw.choice(names if draw.random() < 0.3 else SIGNS)
            for _ in range(draw.randrange(1, 25))
        )
    whole = list(written(draw))
    for _ in range(draw.choice([0, 0, 1, 2])):
        whole[draw.randrange(len(whole))] = draw.choice([*SIGNS, ""])
    return "".join(whole)


def written(draw: random.Random) -> str:
    """The text of a random pattern that has one."""
    kinds = Pattern.registry.kinds
    names = [
        name
        for name in LEAVES
        if name not in TENSORS and name in kinds and kinds[name].no_text is None
    ]
    at = Places(1, 1, 9, 9, (0,))
    parts = [
        str(build(plain_leaf(draw, draw.choice(names), 9), at)) for _ in range(draw.randrange(1, 4))
    ]
    return draw.choice([" & ", " | ", "&~"]).join(parts)


@each
def work(number: int, found: Found) -> None:
    """A case is one text: it is a pattern whose own text reads back as the same, or it is refused."""
    given = text(random.Random(f"text {number}"))
    found.count("texts")
    try:
        pattern = parse(given)
        found.count("patterns")
        if parse(str(pattern)) != pattern:
            found.wrong.append(
                f"text {number}: {given!r} is {pattern!s}, which reads back otherwise"
            )
        if pattern.dense(4, 5).shape[-2:] != (4, 5):
            found.wrong.append(f"text {number}: {given!r} has a mask of another shape")
    except RegardError as refusal:
        found.count("refused")
        if not 15 < len(str(refusal)) < 3000:
            found.wrong.append(f"text {number}: {given!r} is refused by {str(refusal)!r}")
    except Exception as error:
        found.wrong.append(
            f"text {number}: {given!r} raises {type(error).__name__}: {str(error)[:90]}"
        )
