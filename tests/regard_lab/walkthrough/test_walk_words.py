"""Texts are cut as a person cuts them, and words are found as a person names them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.lessons.walkthrough import LIMIT, shown_walk, split_words, to_html, to_text, walk, walk_whole
from regard_lab.lessons.walkthrough.steps import find_word


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Life is short, eat dessert first", ["Life", "is", "short", ",", "eat", "dessert", "first"]),
        ("It didn’t end... 'so'!", ["It", "didn’t", "end", "...", "'", "so", "'!"]),
        ("well-known snake_case 3.5%", ["well", "-", "known", "snake_case", "3", ".", "5", "%"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("cafe\u0301 ❤️ 👩‍💻", ["cafe\u0301", "❤️", "👩‍💻"]),
        ("a\n\tb\u00a0c", ["a", "b", "c"]),
        ("<b>", ["<", "b", ">"]),
        ("猫が好き。", ["猫が好き", "。"]),
    ],
)
def test_words_and_punctuation_part(text, words):
    assert split_words(text) == words


@given(st.text())
def test_no_letter_is_lost_and_none_is_made(text):
    assert "".join(split_words(text)) == "".join(text.split())


def test_a_word_is_found_by_number_or_by_itself():
    words = ["The", "cat", "7", "sat", "the"]
    assert [find_word(named, words) for named in (1, 2, 4, "5", "cat", "CAT", "the")] == [0, 1, 3, 4, 1, 1, 0]
    assert find_word("7", words) == 2  # no seventh word, so the one that reads 7
    with pytest.raises(ArgumentError, match="word 7 does not exist; the text has words 1 to 5"):
        find_word(7, [*words[:2], "six", "sat", "the"])


def test_a_word_of_100_000_letters_is_cut_at_once():
    said = to_text(walk("a" * 100_000 + " b"))
    assert len(said) < 200_000
    assert "…" in said


def test_a_step_that_does_not_exist_is_named():
    with pytest.raises(ArgumentError, match="this walkthrough has no step 'beta'; there are words"):
        walk("a b")["beta"]


def test_a_text_without_words_or_with_too_many_is_refused():
    for nothing in ("", " \n", []):
        with pytest.raises(ArgumentError, match="has no words"):
            walk(nothing)
    with pytest.raises(ArgumentError, match=f"has 10000 words; .* at most {LIMIT} words"):
        walk("word " * 10_000)
    assert len(walk("word " * LIMIT).words) == LIMIT


def test_one_word_alone_can_be_walked_through():
    found = walk("Life")
    assert found.chosen == "Life"
    assert found["weights"].tolist() == [[1.0]]


@pytest.mark.parametrize("number", [1.5, True])
def test_a_number_that_is_not_whole_finds_no_word(number):
    with pytest.raises(ArgumentError, match=r"word is .* a whole number"):
        find_word(number, ["The", "cat"])


def test_nothing_is_shown_where_a_step_has_no_sentence():
    found = walk_whole("The animal was tired", model="encoder", layers=6)
    assert any(not step.says for step in found.steps)
    shown = json.dumps(shown_walk(found).to_json(lambda array: 0), ensure_ascii=False)
    for text in (to_html(found), to_text(found), shown):
        assert "␣" not in text
