"""Scores are sacreBLEU's, on its scale, with its signature, and never of lists that do not fit."""

import pytest
import sacrebleu

from regard.errors import ArgumentError
from regard_lab.text import score

REFERENCES = [
    "Das Tier überquerte die Straße nicht, weil es müde war.",
    "Die Katze schlief, weil sie müde war.",
]
OUTPUTS = [
    "Das Tier überquerte die Straße nicht, weil sie müde war.",
    "Die Katze schlief, weil sie müde war.",
]


def test_scores_are_those_of_sacrebleu_and_signatures_name_the_settings():
    scores = score(OUTPUTS, REFERENCES)
    assert 0 < scores.bleu == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score < 100
    assert 0 < scores.chrf == sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score < 100
    assert (scores.exact_match, scores.count) == (0.5, 2)
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert scores.chrf_signature.startswith(
        "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    )


def test_perfect_is_a_hundred_nothing_is_zero_and_a_match_overlooks_typography_and_white_space_only():
    perfect = score(REFERENCES, REFERENCES)
    nothing = score(["", ""], REFERENCES)
    assert (perfect.bleu, perfect.chrf, perfect.exact_match) == (100, 100, 1)
    assert (nothing.bleu, nothing.chrf, nothing.exact_match) == (0, 0, 0)
    assert score(["He didn't  go", "a"], ["He didn’t go ", "A"]).exact_match == 0.5
    assert score(["a", "a", "a"], ["a", "a", "b"]).exact_match == 2 / 3


@pytest.mark.parametrize(
    ("outputs", "references", "message"),
    [
        ([], [], "0 outputs and 0 references"),
        (["a"], ["a", "b"], "1 outputs and 2 references"),
        ("ab", ["a", "b"], "outputs is 'ab'; it needs a list of strings"),
        (["a"], [["a"]], "references holds .*; it needs a list of strings"),
        ([None], ["a"], "outputs holds None; it needs a list of strings"),
    ],
)
def test_lists_that_do_not_fit_are_refused(outputs, references, message):
    with pytest.raises(ArgumentError, match=message):
        score(outputs, references)
