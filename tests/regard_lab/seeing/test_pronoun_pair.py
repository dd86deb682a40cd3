"""A pair of sentences whose pronouns differ: what each depends on, and the picture of both."""

from pathlib import Path

import pytest

from regard_lab.seeing import Relevance, pronoun_pair
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


def test_a_word_that_speaks_against_the_pronoun_counts_nothing() -> None:
    falls = translated(0).falls
    assert falls["tired"] == 9
    assert falls["animal"] == 6
    assert falls["was"] == 0


def test_the_lines_of_both_sentences_have_one_scale(tmp_path: Path) -> None:
    known = [translated(0), translated(1)]
    draw_pair(known, tmp_path / "pair.svg", "note")
    drawn = (tmp_path / "pair.svg").read_text()
    # 9, 6 and 2 of the first sentence's sum 15, in nine points; by its own sum, the third would be the thickest
    drawn_widths = {
        width: f"stroke-width: {width}" in drawn for width in ("5.4", "3.6", "1.2", "9")
    }
    assert drawn_widths == {"5.4": True, "3.6": True, "1.2": True, "9": False}
    draw_pair(known[:1], tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_says_what_the_pronoun_does_without_the_changed_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr(
        pronoun_pair, "write_text", lambda figure, text, *place, **style: written.append(text)
    )
    draw_pair([translated(0), translated(1)], tmp_path / "pair.svg")
    text = "\n".join(written)
    assert "Without “tired” its probability falls from 0.98 to 0.01." in text
    assert "Without “wide” its probability is still 0.99." in text


def test_the_changed_words_are_those_that_differ() -> None:
    assert changed_words(PAIR[0].source, PAIR[1].source) == ("tired", "wide")
    assert changed_words("It slept.", "It slept.") == ("", "")


def test_without_a_word_the_log_odds_fall_by_its_score() -> None:
    assert translated(0).probability_without("tired") == pytest.approx(0.0066929, abs=1e-6)
    assert translated(1).probability_without("wide") == pytest.approx(0.9933071, abs=1e-6)
