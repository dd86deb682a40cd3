"""What the demo shows at its end: the sentences, on which words their pronouns depend, commands that can be typed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard_lab.cli.demo_end import (
    PAIR,
    TranslatedPair,
    last_lines,
    pair_lines,
    percent,
    picture_lines,
    program_name,
    score_lines,
    write_words,
)
from regard_lab.decoding import Evaluation
from regard_lab.seeing import Relevance
from regard_lab.seeing.pronoun_pair import PronounTranslation
from regard_lab.seeing.referents import Agreement, HeadChoice, SwapCheck
from regard_lab.teaching import read_report
from regard_lab.text.pronouns.lexicon import DRAWBACKS, NOUNS
from regard_lab.text.scores import Scores
from regard_lab.training.recipes.evaluation import PronounReport


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
        "Without *wide*, the probability of *sie* (among es, er and sie) is still 0.99: in this sentence the "
        "model writes *sie* even without an adjective." in text
    )
    assert (
        "(head 2 of layer 1, counted from 0) looked most at animal (weight 0.90) while *es* was written"
        in text
    )
    assert "and at street (weight 0.80) while *sie* was written." in text


def test_each_sentence_stands_on_one_line_of_80_columns_beside_what_its_pronoun_means() -> None:
    lines = [line for line in pair_lines(pair({}), (0, 0)) if " = " in line]
    assert len(lines) == 2
    assert all(len(line) <= 80 - 3 for line in lines)  # the demo indents by 3


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
    listed = set()
    for line in text.splitlines():
        listed |= {*line.partition(": ")[2].split(", ")}
    assert {noun.english for noun in NOUNS} <= listed
    assert {drawback.english for drawback in DRAWBACKS} <= listed


def lines_on_attention(agreement: float) -> str:
    found = Agreement(agreement, preference=0.5, count=200, chance=0.07, offset=-2, by_offset=0.45)
    scores = Scores(
        count=200,
        bleu=99.0,
        bleu_signature="nrefs:1",
        chrf=99.5,
        chrf_signature="nrefs:1",
        exact_match=0.95,
    )
    report = PronounReport(
        pronouns=0.9,
        baseline=0.34,
        contrast=0.8,
        swaps=SwapCheck(0.95, 0.93, 0.98, 100),
        head=HeadChoice(1, 2, 0.4),
        agreement=found,
    )
    return "\n".join(score_lines(Evaluation(scores, 1.5, {}, []), report, None))


def test_a_head_is_compared_with_a_rule_that_has_no_model() -> None:
    text = lines_on_attention(0.41)
    assert (
        "(head 2 of layer 1, counted from 0; chosen on other sentences) is right in 41.0 %" in text
    )
    assert "That is no better than a rule without a model: the word 2 words back" in text
    assert "is right in 45.0 %, a random word in 7.0 %." in text
    assert "That is better than a rule" in lines_on_attention(0.46)
    assert "BLEU 99.00 and chrF 99.50 of 100" in text
    assert "nrefs" not in text


def test_each_picture_is_named_with_what_it_shows() -> None:
    names = ["pair.png", "article-1.png", "article-1-used.png", "article-2.png", "every-head.png"]
    lines = picture_lines([f"runs/demo/pictures/{name}" for name in names])
    assert [line.partition(": ")[0] for line in lines] == [
        "pair.png",
        "article-1.png, article-2.png",
        "article-1-used.png",
        "every-head.png",
    ]
    assert all(line.partition(": ")[2] for line in lines)
    # a hardly trained model has no pair, and no word that decides a pronoun
    assert len(picture_lines(["article-1.png"])) == 1


def test_the_last_lines_have_the_weights_of_a_model_of_english() -> None:
    example = read_report("english").figures["it"]["example"]
    tired, wide = (example["weights"][ending][example["animal"]] for ending in ("tired", "wide"))
    assert tired > 2 * wide
    page, english = last_lines(Path("it.html"))
    assert page.endswith("open it.html")
    assert f"the weight {tired:.2f} if the sentence ends in *tired* and {wide:.2f} if" in english
    assert english.endswith("lesson relations")


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
