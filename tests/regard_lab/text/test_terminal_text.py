"""Text from anywhere, as a terminal may show it: every character that could command it is an escape, others stay."""

import json
import sys
import unicodedata

import pytest

from regard.patterns.drawing import PLAIN, SIGNS
from regard_lab.text.terminal import one_line, printable, printable_json, printable_lines, stand_in

EVERY = [*map(chr, range(sys.maxunicode + 1))]


def test_no_control_direction_mark_or_line_separator_is_left():
    dangerous = {
        letter
        for letter in EVERY
        if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(letter)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        or unicodedata.name(letter, "").endswith("-TO-RIGHT MARK")
        or unicodedata.name(letter, "").endswith("-TO-LEFT MARK")
    }
    assert len(dangerous) > 2048 + 65
    assert not dangerous & set(printable("".join(EVERY)))
    assert dangerous & set(printable_lines("".join(EVERY))) == {"\n", "\t"}
    assert dangerous & set(printable_json("".join(EVERY))) == {"\n", "\t"}


def test_visible_characters_of_every_script_stay():
    visible = [letter for letter in EVERY if unicodedata.category(letter)[0] in "LMNPS"]
    assert printable("".join(visible)) == "".join(visible)
    emoji = "👩\u200d👧 کتاب\u200cها 日本\u3000語 10\u00a0€"
    assert (
        printable(emoji)
        == printable_lines(emoji)
        == printable_json(emoji)
        == one_line(emoji)
        == emoji
    )


def test_json_has_the_same_values():
    values = {"text": " ".join(EVERY), "list": ["\x9b", "\u202e", "\U000e0041"]}
    text = json.dumps(values, ensure_ascii=False)
    assert json.loads(printable_json(text)) == values


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r\n"]
)
def test_one_line_of_data_is_one_line(end):
    assert len(one_line(f"a{end}b\x1b[0m").splitlines()) == 1
    assert "\x1b[0m" in one_line(f"a{end}b\x1b[0m")


def test_plain_signs_are_those_of_the_command_line():
    assert "".join(map(stand_in, SIGNS)) == PLAIN
