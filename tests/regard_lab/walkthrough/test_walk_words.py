"""How texts are cut and words found; what learners must read: what is random, where counting starts, what to paste."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from walk_cases import HOSTILE, SENTENCE, case

from regard.errors import ArgumentError
from regard_lab.walkthrough import to_text, walk, walk_whole
from regard_lab.walkthrough.steps import LIMIT, find_word, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Life is short, eat dessert first",
            ["Life", "is", "short", ",", "eat", "dessert", "first"],
        ),
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
    assert [find_word(named, words) for named in (1, 2, 4, "5", "cat", "CAT", "the")] == [
        0,
        1,
        3,
        4,
        1,
        1,
        0,
    ]
    assert find_word("7", words) == 2  # no seventh word, so the one that reads 7
    for number, said in (
        (7, "word 7 does not exist; the text has words 1 to 5"),
        (1.5, "word is .* a whole number"),
    ):
        with pytest.raises(ArgumentError, match=said):
            find_word(number, [*words[:2], "six", "sat", "the"])


def test_a_text_without_words_or_with_too_many_is_refused():
    for nothing in ("", " \n", []):
        with pytest.raises(ArgumentError, match="has no words"):
            walk(nothing)
    with pytest.raises(ArgumentError, match=f"has 10000 words; .* at most {LIMIT} words"):
        walk("word " * 10_000)
    assert len(walk("word " * LIMIT).words) == LIMIT


RANDOM = "Nothing here is trained: "


def flat(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    "walkthrough", [walk(SENTENCE), walk_whole(SENTENCE, layers=1)], ids=["layer", "whole"]
)
def test_random_weights_are_named_before_the_first_step(walkthrough):
    parts = (
        f"{RANDOM}all weights are random numbers",
        "Words are counted from 1",
        "words = split_words(",
    )
    places = [flat(to_text(walkthrough)).index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (("table",), "table is not given but random. Scores and weights depend on random numbers"),
        (
            ("W_k", "W_o"),
            "W_k and W_o are not given but random. Scores and weights depend on random numbers",
        ),
        (
            ("W_v", "W_o"),
            "computed from given numbers only; the context vectors and the output depend on random ones",
        ),
        (
            ("W_v",),
            "Scores and weights are computed from given numbers only; the context vectors and the output",
        ),
        (
            ("W_o",),
            "Scores, weights and context vectors are computed from given numbers only; the output depends on",
        ),
    ],
)
def test_only_the_results_of_random_weights_are_called_meaningless(drawn, said):
    made = {name: torch.tensor(value) for name, value in GIVEN.items() if name not in drawn}
    first, second = (walk("a b", dim=2, heads=1, weights=made, seed=seed) for seed in (0, 1))
    assert said in flat(to_text(first))
    assert RANDOM not in to_text(first)
    same = (
        torch.equal(first["weights"], second["weights"]),
        torch.equal(first["contexts"], second["contexts"]),
    )
    assert same == ("depend on random numbers" not in said, "context vectors are computed" in said)
    assert not torch.equal(first["output"], second["output"])
    assert ("which word gets most weight" in flat(to_text(first))) is not same[0]


GIVEN = {
    "table": [[1.0, 0.0], [0.0, 1.0]],
    "W_q": [[1.0, 0.0], [0.0, 1.0]],
    "W_k": [[1.0, 0.0], [0.0, 1.0]],
    "W_v": [[1.0, 0.0], [0.0, 1.0]],
    "W_o": [[1.0, 0.0], [0.0, 1.0]],
}


def pasted(walkthrough):
    """What the two statements of the text define, and after them every line."""
    names = {}
    statements = [
        line.removeprefix(">>> ")
        for line in to_text(walkthrough).splitlines()
        if line.startswith(">>> ")
    ]
    assert len(statements) == 2
    exec("\n".join(statements), names)
    for step in walkthrough.steps:
        exec(step.line, names)
    return names


LONG_WORDS = "Donaudampfschifffahrtsgesellschaft " * 3 + "猫" * 30 + ' it\'s "short" \\ \n'


@pytest.mark.parametrize(
    "walkthrough",
    [
        *(case(name) for name in ("self", "causal", "cross", "rotary grouped", "wide", "additive")),
        walk(LONG_WORDS),
        walk(HOSTILE),
        walk_whole(SENTENCE, layers=1, context="Das Leben ist kurz"),
    ],
)
def test_the_lines_run_where_the_two_statements_were_pasted(walkthrough):
    names = pasted(walkthrough)
    for step in walkthrough.steps:
        if isinstance(step.value, torch.Tensor):
            torch.testing.assert_close(names[step.name], step.value, rtol=0, atol=0)
        else:
            assert tuple(names[step.name]) == step.value
