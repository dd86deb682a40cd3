from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard_lab.cli.app import app


def show(*arguments: str | Path) -> str:
    answer = CliRunner().invoke(app, ["show", *map(str, arguments)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_the_reach_of_a_stack_is_said_and_drawn():
    assert show("causal_window(3)", "--length", "6", "--layers", "2").splitlines() == [
        "causal_window(3): 15 of 36 pairs, 20 through 2 layers",
        "■ allowed, □ only through 2 layers",
        "    0 1 2 3 4 5",
        "  0 ■ · · · · ·",
        "  1 ■ ■ · · · ·",
        "  2 ■ ■ ■ · · ·",
        "  3 □ ■ ■ ■ · ·",
        "  4 □ □ ■ ■ ■ ·",
        "  5 · □ □ ■ ■ ■",
        "each row is a query, each column a key",
        "2 layers reach 4 back, 0 ahead",
        "the last query learns from 5 of 6 positions: 1..5",
    ]


def test_a_reach_without_end_is_everything():
    lines = show("causal & global_tokens(0)", "--length", "4", "--layers", "2").splitlines()
    assert lines[-2] == "2 layers reach everything back, 0 ahead"


def test_json_tells_of_the_stack_as_well():
    record = json.loads(show("causal_window(2)", "--length", "3", "--layers", "2", "--json"))
    assert record["reach"] == {"back": 2, "ahead": 0}
    assert record["layers"] == 2
    assert record["learned"] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert "reach" not in json.loads(show("causal", "--json"))


def test_a_picture_of_a_stack_has_another_shade(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    colours = {}
    for layers in (1, 2):
        show("causal_window(2)", "--length", "8", "--layers", layers, "--png", tmp_path / "stack.png")
        pixels = image.imread(tmp_path / "stack.png")[..., :3]
        colours[layers] = {tuple(round(255 * part) for part in pixel) for pixel in pixels.reshape(-1, 3).tolist()}
    lighter = (0xA3, 0xBF, 0xDB)
    assert lighter in colours[2]
    assert lighter not in colours[1]


@pytest.mark.parametrize(
    "arguments", [("causal", "--layers", "0"), ("causal", "--length", "8", "--keys", "4", "--layers", "2")]
)
def test_a_stack_that_cannot_be_is_refused(arguments):
    answer = CliRunner().invoke(app, ["show", *arguments])
    assert answer.exit_code != 0


def test_the_list_names_every_pattern_with_its_arguments():
    listed = json.loads(show("--list", "--json"))
    names = {call.split("(")[0] for call in listed}
    assert names == set(Pattern.registry.names())
    assert listed["causal_window(size)"].startswith("A query may look at `size` keys")
    assert "fixed(stride, summary=1, local=true)" in show("--list").splitlines()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((), "name a pattern, such as"), (("causal", "--list"), "leave it out to draw 'causal'")],
)
def test_a_list_and_a_drawing_are_two_things(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        show(*arguments)
