"""The colours of numbers, the same in terminal, page and pictures: for weights those of `regard.inspection`.

Both can be read without seeing red or green, and no meaning hangs on colour alone: the number stands there.
"""

from __future__ import annotations

import math

from regard.walkthrough.steps import Scale

# cividis, every fifth of its 256 colours: Nuñez, Anderton and Renslow 2018, made for colour-blind readers.
WEIGHTS = tuple(
    """
    00224e 002656 002a5f 002d68 003070 083370 163770 203a6f 273e6e 2e416d 34456c 3a486c 3f4c6c 444f6c 49536c 4e566c
    535a6d 575d6d 5c616e 60646f 656870 696b71 6d6f72 727274 767676 7a7a78 7e7d78 838179 888578 8d8878 928c78 969077
    9b9476 a09875 a59c74 aaa073 afa471 b5a86f baac6d bfb06b c4b468 c9b965 cfbd62 d4c15f dac65b dfca57 e5cf52 ead34c
    f0d846 f6dd3f fce236 fee838
    """.split()  # noqa: SIM905
)
NEGATIVE, POSITIVE = "2166ac", "e08214"  # blue and orange
LEVELS = 12  # of signed numbers on each side of 0
DEEPEST = 0.6  # how much of its colour the largest signed number takes
BLACK, WHITE = "000000", "ffffff"
DARK = "15171c"  # the paper of the dark page

# A scale's letter and a level: ("w", 0..51), ("p" or "n", 1..LEVELS), ("h", 0) for what is hidden.
Shade = tuple[str, int]


def shade(value: float, largest: float, scale: Scale) -> Shade | None:
    """What colours a number, beside the largest absolute one of its step; None for no colour.

    >>> shade(0.5, 1.0, "weights"), shade(-2.0, 4.0, "signed"), shade(-math.inf, 4.0, "signed")
    (('w', 26), ('n', 6), ('h', 0))
    """
    if value == -math.inf or (value == 0 and scale == "weights"):
        return "h", 0
    if scale == "weights":
        return "w", round(min(max(value, 0.0), 1.0) * (len(WEIGHTS) - 1))
    level = round(LEVELS * abs(value) / largest) if scale == "signed" and largest else 0
    return ("p" if value > 0 else "n", level) if level else None


def weight_colours(level: int) -> tuple[str, str]:
    """Paper and ink of a weight."""
    paper = WEIGHTS[level]
    return paper, max((BLACK, WHITE), key=lambda ink: contrast(paper, ink))


def signed_colours(letter: str, level: int) -> tuple[str, float]:
    """The colour of a signed number, and how much of it is laid over the paper."""
    return (POSITIVE if letter == "p" else NEGATIVE), DEEPEST * level / LEVELS


def mixed(colour: str, paper: str, share: float) -> str:
    """So much of a colour over a paper.

    >>> mixed("000000", "ffffff", 0.5)
    '808080'
    """
    pairs = zip(_channels(colour), _channels(paper), strict=True)
    return "".join(f"{round(255 * (share * over + (1 - share) * under)):02x}" for over, under in pairs)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21; text needs 4.5.

    Source: Web Content Accessibility Guidelines 2.2, definition of contrast ratio.

    >>> contrast("000000", "ffffff")
    21.0
    """
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]


def _luminance(colour: str) -> float:
    linear = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in _channels(colour))
    return sum(share * x for share, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
