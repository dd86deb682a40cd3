"""The terminal's text: whole lines, nothing wider than asked for, and what is left out is counted."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from walk_cases import CASES, HOSTILE, SENTENCE, case

from regard_lab.lessons.walkthrough import to_rich, to_text, walk
from regard_lab.lessons.walkthrough.steps import Axis
from regard_lab.lessons.walkthrough.tables import Gap, kept, shown

LONG = " ".join(["The animal did not cross the street because it was too tired"] * 5)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize(
    "text", [SENTENCE, LONG, HOSTILE, ["猫" * 30, "Donaudampfschifffahrtsgesellschaft" * 3, "e\u0301" * 40]]
)
def test_no_line_is_wider_than_asked_for(text, width):
    for options in ({}, {"causal": True, "dim": 64}, {"score": "concat"}, {"context": ["a", "猫" * 20]}):
        for line in to_text(walk(text, **options), width).splitlines():
            assert cell_len(line) <= width, line


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_told_with_its_formula_line_and_shape(name):
    text = re.sub(r"\s+", " ", to_text(case(name), 160).replace("... ", ""))
    for step in case(name).steps:
        assert step.title in text
        assert re.sub(r"\s+", " ", step.line) in text
        assert step.shape in text


def test_numbers_stand_under_their_words_as_they_are():
    found = walk(SENTENCE, causal=True)
    lines = to_text(found).splitlines()
    start = next(at for at, line in enumerate(lines) if ">>> weights" in line)
    assert lines[start + 1].split() == list(found.words)
    for place, row in enumerate(found["weights"].tolist()):
        cells = lines[start + 2 + place].split()
        assert cells[-7:] == [f"{weight:.3f}" for weight in row]
        assert (cells[0] == "▸") == (place == found.word)


def test_a_long_text_says_how_many_are_left_out():
    found = walk(LONG, word=30)
    assert len(found.words) == 60
    text = to_text(found, 80)
    rows = [int(count) for count in re.findall(r"… (\d+) more words", text)]
    columns = [int(count) for count in re.findall(r" …\+(\d+)…", text)]
    assert rows[0] + rows[1] + 12 == 60  # twelve rows of the first long table are there
    assert columns
    assert "▸ 30 " in text
    assert len(text.splitlines()) < 600


@given(st.integers(1, 200), st.integers(1, 60), st.data())
def test_what_is_kept_and_what_is_left_out_add_up(count, room, data):
    chosen = data.draw(st.one_of(st.none(), st.integers(0, count - 1)))
    found = kept(Axis("words", ("w",) * count, chosen), room)
    places = [place for place in found if not isinstance(place, Gap)]
    assert sum(gap.count for gap in found if isinstance(gap, Gap)) + len(places) == count
    assert places == sorted(set(places))
    assert len(places) <= max(room, 3)
    assert {0, count - 1} <= set(places)
    assert chosen is None or chosen in places


def test_colours_change_no_character_and_nothing_commands_the_terminal():
    found = walk(HOSTILE, word=3, causal=True)
    told = io.StringIO()
    Console(file=told, width=80, highlight=False).print(to_rich(found, 80), soft_wrap=True)
    plain = [line.rstrip() for line in told.getvalue().splitlines()]
    assert plain == to_text(found, 80).splitlines()
    assert "\x1b" not in told.getvalue()
    assert "\u202e" not in told.getvalue()
    coloured = io.StringIO()
    Console(file=coloured, width=80, force_terminal=True, color_system="truecolor", legacy_windows=False).print(
        to_rich(found, 80), soft_wrap=True
    )
    assert "\x1b[38;2;" in coloured.getvalue()
    assert "\x1b[2J" not in coloured.getvalue()


def test_large_and_small_numbers_keep_to_a_cell():
    assert [shown(x) for x in (0.0, -0.0004, 999.9994, -12345.6, 1e-9, True)] == [
        "0.000", "0.000", "999.999", "−1.23e+04", "0.000", "1",
    ]  # fmt: skip
