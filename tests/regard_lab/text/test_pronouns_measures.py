"""Measures: what counts as the right pronoun in a translator's output, whole or damaged."""

import pytest

from regard.errors import ArgumentError
from regard_lab.text.pronouns import (
    contrast_accuracy,
    majority_baseline,
    make_contrast_pairs,
    make_split,
    pronoun_accuracy,
    pronoun_of,
)

SENTENCES = make_split("test", 300)
PAIRS = make_contrast_pairs(100)


@pytest.mark.parametrize(
    ("output", "pronoun"),
    [
        ("Das Tier überquerte die Straße nicht, weil es zu müde war.", "es"),
        ("Weil sie zu breit war, überquerte das Tier die Straße nicht.", "sie"),
        ("Der Hund wollte die Straße überqueren, aber er war müde.", "er"),
        ("Obwohl er alt war, hielt der Bus vor dem Haus.", "er"),
        ("das tier überquerte die straße nicht , weil es zu müde war .", "es"),
        ("Das Tier mied das Sofa, DA SIE", "sie"),
        ("Das Tier, weil zu müde es war", "es"),
        ("Es überquerte sie nicht, weil er zu müde war.", "er"),
        ("weil es weil sie", None),
        ("Es sah sie.", None),
        ("Das Tier überquerte die Straße nicht.", None),
        ("weil essen erst siegt", None),
        ("", None),
    ],
)
def test_the_pronoun_of_the_subordinate_clause_is_found(output, pronoun):
    assert pronoun_of(output) == pronoun


def test_every_reference_translation_gives_back_its_own_pronoun():
    assert [pronoun_of(sentence.target) for sentence in SENTENCES] == [sentence.pronoun for sentence in SENTENCES]


def test_accuracy_is_one_for_references_and_zero_for_silence():
    assert pronoun_accuracy(SENTENCES, [sentence.target for sentence in SENTENCES]) == 1.0
    assert pronoun_accuracy(SENTENCES, [""] * len(SENTENCES)) == 0.0


def test_always_writing_one_pronoun_earns_the_baseline_at_most():
    earned = {
        word: pronoun_accuracy(SENTENCES, [f"Weil {word} es sagt"] * len(SENTENCES)) for word in ("er", "sie", "es")
    }
    assert max(earned.values()) == majority_baseline(SENTENCES)
    assert majority_baseline(SENTENCES) < 0.4


def test_one_answer_for_both_sentences_of_a_contrast_pair_earns_nothing():
    assert contrast_accuracy(PAIRS, [(first.target, first.target) for first, _ in PAIRS]) == 0.0
    assert contrast_accuracy(PAIRS, [(second.target, first.target) for first, second in PAIRS]) == 0.0
    assert contrast_accuracy(PAIRS, [(first.target, second.target) for first, second in PAIRS]) == 1.0


def test_measures_refuse_outputs_that_do_not_match():
    with pytest.raises(ArgumentError, match="300 sentences came with 1 outputs"):
        pronoun_accuracy(SENTENCES, [""])
    with pytest.raises(ArgumentError, match="100 sentence pairs came with 0 outputs"):
        contrast_accuracy(PAIRS, [])
    for nothing in (lambda: majority_baseline([]), lambda: pronoun_accuracy([], []), lambda: contrast_accuracy([], [])):
        with pytest.raises(ArgumentError, match=r"0 sentence.* to measure"):
            nothing()
