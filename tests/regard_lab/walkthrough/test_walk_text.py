"""A walkthrough as text and JSON, with formulas: lines of the width, every number, what is omitted."""

import json
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from walk_cases import HOSTILE, SENTENCE, VIEWED, case

from regard_lab.walkthrough import to_json, to_text, walk
from regard_lab.walkthrough.steps import Axis
from regard_lab.walkthrough.writing import Gap, formula_elements, formula_text, kept

LONG = " ".join(["The animal did not cross the street because it was too tired"] * 5)


@pytest.mark.each_value
@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        LONG,
        HOSTILE,
        ["猫" * 30, "Donaudampfschifffahrtsgesellschaft" * 3, "e\u0301" * 40],
    ],
)
def test_no_line_is_wider_than_asked_for(text, width):
    for options in (
        {},
        {"causal": True, "dim": 64},
        {"score": "concat"},
        {"context": ["a", "猫" * 20]},
    ):
        lines = to_text(walk(text, **options), width).splitlines()
        assert [
            line for line in lines if cell_len(line) > width and not line.startswith(">>> ")
        ] == []  # to be pasted


@pytest.mark.parametrize("name", VIEWED)
def test_every_step_is_told_with_its_formula_line_and_shape(name):
    text = re.sub(r"\s+", " ", to_text(case(name), 160).replace("... ", ""))
    for step in case(name).steps:
        assert step.title in text
        assert re.sub(r"\s+", " ", step.line) in text
        assert step.shape in text


def test_numbers_stand_under_their_words_as_they_are():
    walkthrough = walk(SENTENCE, causal=True)
    lines = to_text(walkthrough).splitlines()
    start = next(number for number, line in enumerate(lines) if ">>> weights" in line)
    assert lines[start + 1].split() == list(walkthrough.words)
    for place, row in enumerate(walkthrough["weights"].tolist()):
        cells = lines[start + 2 + place].split()
        assert cells[-7:] == [f"{weight:.3f}" for weight in row]
        assert (cells[0] == "▸") == (place == walkthrough.word)


def test_a_long_text_says_how_many_are_left_out():
    walkthrough = walk(LONG, word=30)
    assert len(walkthrough.words) == 60
    text = to_text(walkthrough, 80)
    rows = [int(count) for count in re.findall(r"… (\d+) more words", text)]
    columns = [int(count) for count in re.findall(r" …\+(\d+)…", text)]
    assert rows[0] + rows[1] + 12 == 60  # twelve rows of the first long table are there
    assert columns
    assert "▸ 30 " in text
    assert len(text.splitlines()) < 600


@given(st.integers(1, 200), st.integers(1, 60), st.data())
def test_what_is_kept_and_what_is_left_out_add_up(count, room, data):
    chosen = data.draw(st.one_of(st.none(), st.integers(0, count - 1)))
    places_kept = kept(Axis("words", ("w",) * count, chosen), room)
    places = [place for place in places_kept if not isinstance(place, Gap)]
    assert sum(gap.count for gap in places_kept if isinstance(gap, Gap)) + len(places) == count
    assert places == sorted(set(places))
    assert len(places) <= max(room, 3)
    assert {0, count - 1} <= set(places)
    assert chosen is None or chosen in places


def test_nothing_in_a_text_commands_the_terminal():
    text = to_text(walk(HOSTILE, word=3, causal=True), 80)
    assert "\x1b" not in text
    assert "\u202e" not in text


def numbers(value):
    """A tensor of what JSON tells; null is minus infinity."""
    if isinstance(value, list):
        return torch.stack([numbers(part) for part in value])
    return torch.tensor(-math.inf if value is None else value, dtype=torch.float64)


@pytest.mark.parametrize("name", ["self", "grouped", "waves across", "additive grouped"])
def test_every_value_comes_back(name):
    walkthrough = case(name)
    record = json.loads(to_json(walkthrough), parse_constant=pytest.fail)
    assert record["word"] == {"number": walkthrough.word + 1, "text": walkthrough.chosen}
    assert [step["name"] for step in record["steps"]] == [step.name for step in walkthrough.steps]
    for told, step in zip(record["steps"], walkthrough.steps, strict=True):
        if isinstance(step.value, torch.Tensor):
            assert torch.equal(numbers(told["value"]), step.value.double())
            assert told["shape"] == list(step.value.shape)
        else:
            assert told["value"] == list(step.value)


@pytest.mark.parametrize(
    ("formula", "text", "inside"),
    [
        ("q_i", "q_i", [["msub", ["mi", "q"], ["mi", "i"]]]),
        ("ω_{ij}", "ω_ij", [["msub", ["mi", "ω"], ["mrow", ["mi", "i"], ["mi", "j"]]]]),
        ("K^T", "K^T", [["msup", ["mi", "K"], ["mi", "T"]]]),
        ("z_i^h", "z_i^h", [["msubsup", ["mi", "z"], ["mi", "i"], ["mi", "h"]]]),
        ("{a}/{√{d}}", "a / √d", [["mfrac", ["mi", "a"], ["msqrt", ["mi", "d"]]]]),
        ("Σ_j", "Σ_j", [["msub", ["mo", "∑"], ["mi", "j"]]]),
        ('1 " if a < b"', "1  if a < b", [["mn", "1"], ["mtext", " if a < b"]]),
        ("exp(x)", "exp(x)", [["mi", "exp"], ["mo", "("], ["mi", "x"], ["mo", ")"]]),
    ],
)
def test_both_forms(formula, text, inside):
    assert formula_text(formula) == text
    assert formula_elements(formula) == ["math", *inside]


def letters(element):
    """The text inside an element."""
    return element if isinstance(element, str) else "".join(map(letters, element[1:]))


@pytest.mark.parametrize("name", VIEWED)
def test_every_formula_of_a_walk_keeps_its_letters(name):
    for step in case(name).steps:
        drawn = "".join(letters(formula_elements(step.formula)).split()).replace("∑", "Σ")
        typed = "".join(sign for sign in formula_text(step.formula) if sign not in " _^/√").replace(
            "-", "−"
        )
        assert sorted(drawn.replace("/", "")) == sorted(typed), step.formula
