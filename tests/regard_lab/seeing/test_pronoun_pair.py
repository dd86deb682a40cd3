"""A pair of sentences whose pronouns differ: what each depends on, and the picture of both."""

from pathlib import Path

import pytest

from regard_lab.seeing import Relevance
from regard_lab.seeing.pronoun_pair import PronounTranslation, changed_words, draw_pair
from regard_lab.text.pronouns import ARTICLE_SENTENCES

PAIR = ARTICLE_SENTENCES[:2]
SCORES = ({"tired": 9.0, "animal": 6.0, "was": -3.0}, {"street": 2.0, "wide": -1.0})


def translated(number: int) -> PronounTranslation:
    """A sentence of the pair, with these scores and the log odds 4."""
    sentence = PAIR[number]
    words = tuple(sentence.source.replace(".", " .").split())
    lens = Relevance(
        lens="erase",
        word=sentence.pronoun,
        others=("er",),
        place=7,
        log_odds=4.0,
        source_words=words,
        source_scores=tuple(SCORES[number].get(word, 0.0) for word in words),
        written_words=(),
        passes=1,
    )
    changed = ("tired", "wide")[number]
    return PronounTranslation(
        sentence.source, sentence.target, changed, "das Tier", "the animal", lens, lens
    )


def test_shares_count_what_speaks_for_the_pronoun() -> None:
    shares = translated(0).shares
    assert shares["tired"] == pytest.approx(0.6)
    assert shares["animal"] == pytest.approx(0.4)
    assert shares["was"] == 0


def test_the_picture_has_thick_lines_to_the_words_that_matter(tmp_path: Path) -> None:
    known = [translated(0), translated(1)]
    draw_pair(known, tmp_path / "pair.svg", "note")
    drawn = (tmp_path / "pair.svg").read_text()
    # shares 0.6 and 0.4 of nine points in the first sentence, all in the second
    assert [f"stroke-width: {width}" in drawn for width in ("5.4", "3.6", "9")] == [True] * 3
    draw_pair(known[:1], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_changed_words_are_those_that_differ() -> None:
    assert changed_words(PAIR[0].source, PAIR[1].source) == ("tired", "wide")
    assert changed_words("It slept.", "It slept.") == ("", "")


def test_without_a_word_the_log_odds_fall_by_its_score() -> None:
    assert translated(0).probability_without("tired") == pytest.approx(0.0066929, abs=1e-6)
    assert translated(1).probability_without("wide") == pytest.approx(0.9933071, abs=1e-6)
