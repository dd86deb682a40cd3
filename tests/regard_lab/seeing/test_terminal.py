import pytest
import torch

from regard.errors import ArgumentError, ShapeError
from regard_lab.seeing.terminal import terminal_map, visible


def test_each_shade_starts_at_its_weight():
    weights = torch.tensor([[0.0, 0.049, 0.05, 0.249, 0.25, 0.5, 0.75, 1.0]])
    row = terminal_map(weights, ["r"], list("abcdefgh")).splitlines()[1]
    assert row == "r     ░░░░▒▒▓▓████"


def test_columns_that_do_not_fit_follow_below_and_none_is_lost():
    columns = [f"w{place}" for place in range(40)]
    text = terminal_map(torch.eye(40), columns, columns, width=40)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.count("██") for line in lines[:-1]) == 40
    assert sum(line.split()[:1] == ["w39"] for line in lines) == 3  # 18 columns a block


def test_column_labels_stand_above_their_columns():
    lines = terminal_map(torch.eye(2), ["first", "second"], ["up", "downwards"]).splitlines()
    assert [line[7] for line in lines[7:9]] == ["u", "p"]
    assert "".join(line[9] for line in lines[:9]) == "downwards"


@pytest.mark.parametrize("word", ["\x1b[2J", "a\nb", "\u202etxt", "\x9b1m"])
def test_nothing_in_a_label_steers_the_terminal(word):
    text = terminal_map(torch.ones(1, 1), [word], [word])
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert len(text.splitlines()) == len(visible(word)) + 2


def test_wide_letters_and_marks_keep_the_columns_in_line():
    text = terminal_map(torch.eye(3), ["猫猫", "e\u0301a", "abcd"], ["猫", "e\u0301", "x"])
    header, *rows = text.splitlines()[:4]
    assert header == "     猫e\u0301 x"
    assert rows == ["猫猫 ██", "e\u0301a     ██", "abcd     ██"]


def test_long_words_are_cut_visibly():
    text = terminal_map(torch.ones(1, 1), ["Donaudampfschifffahrtsgesellschaft"], ["猫" * 30])
    assert "Donaudampfschifff… " in text
    assert text.splitlines()[5].strip() == "…"


def test_no_words_make_no_map_but_a_legend_and_what_does_not_fit_is_refused():
    assert terminal_map(torch.ones(0, 0), [], []).startswith("█ from")
    with pytest.raises(ShapeError, match=r"\(2, 3\); the labels need \(2, 2\)"):
        terminal_map(torch.ones(2, 3), ["a", "b"], ["a", "b"])
    for options, says in (
        ({"width": 10}, "width is 10"),
        ({"encoding": "martian"}, "encoding 'martian' is unknown"),
    ):
        with pytest.raises(ArgumentError, match=says):
            terminal_map(torch.eye(1), ["a"], ["b"], **options)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
@pytest.mark.parametrize("width", [24, 80])
def test_a_map_is_drawn_in_the_characters_of_its_encoding(encoding, width):
    words = ["Tür", "猫", "", "Donaudampfschifffahrtsgesellschaft", "…"]
    text = terminal_map(torch.eye(5) * 0.6 + 0.3, words, words, width, encoding)
    text.encode(encoding)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count("##") for line in lines) == 5  # 0.9
    assert sum(line.count("++") for line in lines) == 20  # 0.3
    assert all(shade in lines[-1] for shade in "#*+.")
