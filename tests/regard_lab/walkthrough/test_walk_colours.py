"""Numbers are told with the colours of the pictures, and can be read on them."""

import math
import re
from importlib.resources import files

import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex

from regard_lab.lessons.walkthrough.tables import (
    DARK,
    LEVELS,
    WEIGHTS,
    WHITE,
    mixed,
    shade,
    signed_colours,
    weight_colours,
)
from regard_lab.seeing.canvas import COLOURS


def contrast(one, other):
    """The contrast ratio of two colours, from 1 to 21, as the Web Content Accessibility Guidelines 2.2 define it."""
    bright = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        bright.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(bright) + 0.05) / (min(bright) + 0.05)


READABLE = 4.5  # Web Content Accessibility Guidelines 2.2, 1.4.3


def themes():
    """The colours of the page, by name, for light and for dark."""
    style = files("regard_lab.lessons.walkthrough").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 2
    return [dict(re.findall(r"--(\w+): #(\w{6})", block)) for block in blocks]


def test_weights_have_the_colours_of_the_pictures():
    table = colormaps[COLOURS]
    steps = len(WEIGHTS) - 1
    for level, colour in enumerate(WEIGHTS):
        assert f"#{colour}" == to_hex(table(round(255 * level / steps)))
        assert shade(level / steps if level else 1e-9, 1.0, "weights") == ("w", level)


def test_brightness_rises_with_the_weight():
    against_black = [contrast(colour, "000000") for colour in WEIGHTS]
    assert against_black == sorted(against_black)


def test_every_weight_can_be_read():
    assert min(contrast(*weight_colours(level)) for level in range(len(WEIGHTS))) >= READABLE


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_every_other_number_and_word_can_be_read(theme):
    for letter in "pn":
        for level in range(1, LEVELS + 1):
            colour, share = signed_colours(letter, level)
            assert contrast(mixed(colour, theme["paper"], share), theme["ink"]) >= READABLE
    for paper in ("paper", "sheet", "code"):
        for ink in ("ink", "faint", "accent"):
            assert contrast(theme[paper], theme[ink]) >= READABLE, (paper, ink)


def test_terminal_numbers_lie_on_the_paper_of_the_dark_page():
    assert themes()[1]["paper"] == DARK
    for letter in "pn":
        colour, share = signed_colours(letter, LEVELS)
        assert contrast(mixed(colour, DARK, share), WHITE) >= READABLE


def test_a_shade_says_sign_size_and_what_is_hidden():
    assert shade(3.0, 3.0, "signed") == ("p", LEVELS)
    assert shade(-1.5, 3.0, "signed") == ("n", LEVELS // 2)
    assert shade(0.01, 3.0, "signed") is None
    assert shade(0.0, 0.0, "signed") is None
    assert shade(5.0, 5.0, "none") is None
    assert shade(-math.inf, 3.0, "signed") == shade(0.0, 1.0, "weights") == ("h", 0)
