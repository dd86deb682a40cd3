"""The colour tables of the page are those of the Python pictures."""

import re
from base64 import b64decode
from pathlib import Path

import pytest
from matplotlib import colormaps

import regard_lab.seeing.explorer as explorer
from regard_lab.seeing.canvas import COLOURS
from regard_lab.seeing.lenses.record import SIGNED

SOURCE = (Path(explorer.__file__).parent / "source" / "palettes.js").read_text("utf-8")


def table(name):
    text = re.search(rf"export const {name} = table\((.*?)\);", SOURCE, re.DOTALL)[1]
    values = b64decode("".join(re.findall(r'"([^"]*)"', text)))
    return [tuple(values[at : at + 3]) for at in range(0, len(values), 3)]


@pytest.mark.parametrize(("name", "of_matplotlib"), [("cividis", COLOURS), ("viridis", "viridis"), ("signed", SIGNED)])
def test_a_table_equals_that_of_the_pictures(name, of_matplotlib):
    assert table(name) == [tuple(map(int, row[:3])) for row in colormaps[of_matplotlib](range(256), bytes=True)]


@pytest.mark.parametrize("name", ["cividis", "viridis"])
def test_more_weight_is_always_lighter(name):
    def luminance(colour):
        parts = (part / 255 for part in colour)
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    steps = [luminance(colour) for colour in table(name)][::4]
    assert steps == sorted(steps)
