"""What the demo shows at its end: the sentences, on which words their pronouns depend, commands that can be typed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard_lab.cli.demo_end import (
    PAIR,
    TranslatedPair,
    pair_lines,
    percent,
    program_name,
    write_words,
)
from regard_lab.seeing import Relevance
from regard_lab.seeing.pronoun_pair import PronounTranslation
from regard_lab.text.pronouns.lexicon import DRAWBACKS, NOUNS


def explained(number: int, scores: dict[str, float], attention: dict[str, float]) -> Any:
    """A sentence of the pair, whose pronoun has the log odds 4."""
    sentence = PAIR[number]
    words = tuple(sentence.source.replace(".", " .").split())
    lens = Relevance(
        lens="erase",
        word=sentence.pronoun,
        others=("er",),
        place=7,
        log_odds=4.0,
        source_words=words,
        source_scores=tuple(scores.get(word, 0.0) for word in words),
        written_words=(),
        passes=1,
    )
    looked = tuple(attention.get(word, 0.0) for word in words)
    return PronounTranslation(
        source=sentence.source,
        written=sentence.target,
        changed=("tired", "wide")[number],
        meant=("das Tier", "die Straße")[number],
        meant_in_english=f"the {sentence.referent}",
        lens=lens,
        attention=replace(lens, lens="attention", source_scores=looked),
    )


def pair(second_attention: dict[str, float]) -> TranslatedPair:
    known = [
        explained(0, {"tired": 9.0, "animal": 6.0, "was": -3.0}, {"animal": 0.9}),
        explained(1, {"street": 2.0, "wide": -1.0}, second_attention),
    ]
    return TranslatedPair([sentence.target for sentence in PAIR], known)


def test_the_pair_says_what_each_pronoun_means_and_what_erasing_the_changed_word_does() -> None:
    text = "\n".join(pair_lines(pair({"street": 0.8}), (1, 2)))
    assert "nicht, weil ES zu müde war." in text
    assert "es = das Tier" in text
    assert "nicht, weil SIE zu breit war." in text
    assert "sie = die Straße" in text
    # log odds 4 - 9 and 4 + 1
    assert (
        "Without *tired*, the probability of *es* (among es, er and sie) falls from 0.98 to 0.01."
        in text
    )
    assert (
        "Without *wide*, the probability of *sie* is still 0.99: in this sentence the model writes"
        in text
    )
    assert (
        "(layer 1, head 2, counted from 0) looked most at animal (weight 0.90) while *es* was written"
        in text
    )
    assert "and at street (weight 0.80) while *sie* was written." in text


def test_a_head_that_looks_elsewhere_is_not_mentioned() -> None:
    assert "looked most" not in "\n".join(pair_lines(pair({"animal": 0.8}), (1, 2)))


def test_a_wrong_pronoun_is_called_so() -> None:
    wrong = TranslatedPair(["Es war.", "Sie war."], pair({}).known[:1])
    lines = pair_lines(wrong, (0, 0))
    assert lines[1] == "Es war."
    assert "(right would be *sie*)" in lines
    assert any(line.startswith("Not both pronouns are right") for line in lines)


def test_all_words_of_the_grammar_are_listed(tmp_path: Path) -> None:
    text = write_words(tmp_path).read_text()
    listed = {word for line in text.splitlines() for word in line.partition(": ")[2].split(", ")}
    assert {noun.english for noun in NOUNS} <= listed
    assert {drawback.english for drawback in DRAWBACKS} <= listed


def test_commands_name_the_program_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / ".venv" / "bin" / "regard"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name() == ".venv/bin/regard"
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "regard"
    monkeypatch.setattr(sys, "argv", ["regard_lab/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert program_name() == "python -m regard_lab"


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50.0 %")])
def test_a_share_below_one_is_never_all(share: float, text: str) -> None:
    assert percent(share) == text
