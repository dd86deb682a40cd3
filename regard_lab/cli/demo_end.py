"""What `regard demo` shows of the model that it has trained: a pair of sentences, a page to try it in, its scores."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.storage.files import replace_file
from regard_lab.cli.app import in_quotes
from regard_lab.cli.view import OpenedTranslator, open_run
from regard_lab.decoding import Evaluation, Translator
from regard_lab.seeing.explorer import to_page
from regard_lab.seeing.lens_study import view_pronoun
from regard_lab.seeing.looks import words_away
from regard_lab.seeing.pronoun_pair import PronounTranslation, changed_words, draw_pair
from regard_lab.seeing.referents import Agreement, HeadChoice
from regard_lab.teaching import read_report
from regard_lab.text.pronouns import ARTICLE_SENTENCES, PRONOUNS, PronounSentence
from regard_lab.text.pronouns.frames import FRAMES
from regard_lab.text.pronouns.lexicon import ATTRIBUTES, DRAWBACKS, NOUNS
from regard_lab.text.pronouns.sentences import noun_phrase
from regard_lab.training.recipes.evaluation import PronounReport

PAGE = "it.html"
WORDS = "words.txt"
PAIR = ARTICLE_SENTENCES[:2]  # "... because it was too tired." and "... too wide."
PICTURE_NOTE = (
    "The thicker a line, the more the pronoun depends on the English word, on one scale for both sentences: each word "
    "was erased in turn. Only the framed word differs between the sentences."
)
SHOWN = {  # what the pictures show, by the pattern of their names
    "pair.png": "the two sentences above, with lines from each pronoun to the words that it depends on",
    "article-[0-9].png": "where heads look in three sentences that articles use",
    "article-[0-9]-used.png": "which words the pronouns of these sentences depend on",
    "every-head.png": "all heads, in the last of these sentences",
}
COLUMN = 60  # of a line, in which the meaning of a pronoun begins: the line then fits 80 columns, indented


@dataclass(frozen=True)
class TranslatedPair:
    """The two sentences as the model translates them; `known` has those whose pronoun is right."""

    translations: Sequence[str]
    known: Sequence[PronounTranslation]

    @property
    def is_right(self) -> bool:
        return len(self.known) == len(PAIR)


def translate_pair(translator: Translator, head: tuple[int, int]) -> TranslatedPair:
    """Translate the pair, and explain each pronoun that is right.

    Args:
        head: the cross-attention head that is looked at, (layer, head).
    """
    translations = translator.translate([sentence.source for sentence in PAIR])
    changed = changed_words(*(sentence.source for sentence in PAIR))
    known = []
    for sentence, translation, word in zip(PAIR, translations, changed, strict=True):
        view = view_pronoun(translator, sentence, translation, head)
        if view is not None:
            explained = PronounTranslation(
                source=sentence.source,
                written=translation.text,
                changed=word,
                meant=noun_phrase(sentence.derivation.referent, "nominative"),
                meant_in_english=f"the {sentence.referent}",
                lens=view.lens,
                attention=view.attention,
            )
            known.append(explained)
    return TranslatedPair([translation.text for translation in translations], known)


def pair_lines(pair: TranslatedPair, head: tuple[int, int]) -> list[str]:
    """The pair with the pronouns in capitals, on which words they depend, and where a head looked."""
    if not pair.is_right:
        return [*_wrong_lines(pair), ""]
    lines = []
    for one in pair.known:
        written = _with_capitals(one.written, one.pronoun)
        lines += [one.source, f"{written:<{COLUMN}} {one.pronoun} = {one.meant}", ""]
    lines += [_dependence(one) for one in pair.known]
    lines.append("(*Without* a word: the mean of all words' vectors took its place.)")
    looked = [one.looked_at for one in pair.known]
    nouns = [sentence.referent for sentence in PAIR]
    if [word for word, _ in looked] == nouns:
        layer, number = head
        each = " and ".join(
            f"at {word} (weight {weight:.2f}) while *{one.pronoun}* was written"
            for one, (word, weight) in zip(pair.known, looked, strict=True)
        )
        lines.append(
            f"One head of the decoder (head {number} of layer {layer}, counted from 0) looked most {each}."
        )
    return lines


def _wrong_lines(pair: TranslatedPair) -> list[str]:
    """A pair whose pronouns are not both right, as after a short training."""
    lines = []
    for sentence, written in zip(PAIR, pair.translations, strict=True):
        lines += [sentence.source, written, f"(right would be *{sentence.pronoun}*)", ""]
    return [
        *lines,
        "Not both pronouns are right. A longer training learns them: leave out --steps.",
    ]


def _with_capitals(written: str, pronoun: str) -> str:
    """The sentence with its pronoun, the last word of this spelling, in capitals.

    >>> _with_capitals("Das Tier schlief, weil es müde war.", "es")
    'Das Tier schlief, weil ES müde war.'
    """
    words = written.split()
    places = [place for place, word in enumerate(words) if word.strip(".,").lower() == pronoun]
    if places:
        words[places[-1]] = words[places[-1]].upper()
    return " ".join(words)


def _dependence(one: PronounTranslation) -> str:
    """What happens to the pronoun if the word that differs is erased."""
    sentence = (
        f"Without *{one.changed}*, the probability of *{one.pronoun}* (among es, er and sie) "
        f"{one.without_changed}"
    )
    if one.is_decided_by_changed:
        return f"{sentence}."
    return (
        f"{sentence}: in this sentence the model writes *{one.pronoun}* even without an adjective."
    )


def write_page(run: Path, sentence: PronounSentence) -> Path:
    """Write the page that holds the model, with this sentence in it, whose pronoun is compared with the others."""
    opened = open_run(run)
    assert isinstance(opened, OpenedTranslator), "the demo trains a translator"
    (translation,) = opened.translator.translate([sentence.source])
    asked = opened.pronoun(translation.text, translation.ids)
    if asked:
        others = tuple(pronoun for pronoun in PRONOUNS if pronoun != asked["of"])
        opened = replace(opened, asked={**asked, "instead_of": others, "place": None})
    exploration = opened.play(sentence.source, None)
    path = run / PAGE
    to_page(replace(exploration, walk=opened.walk(sentence.source))).save(path)
    return path


def write_words(run: Path) -> Path:
    """Write a list of the English words of the grammar, from which a newcomer can form sentences that it knows."""
    by_sense: dict[str, list[str]] = {}
    for noun in NOUNS:
        by_sense.setdefault(f"nouns, {noun.sense}", []).append(noun.english)
    for drawback in DRAWBACKS:
        by_sense.setdefault(f"after 'was too', about {drawback.sense}", []).append(drawback.english)
    by_sense["before a noun"] = [attribute.english for attribute in ATTRIBUTES]
    by_sense["between two nouns"] = [frame.plain for frame in FRAMES]
    lines = [
        "The English words that this translator was trained on. Form sentences like this one:",
        f"  {PAIR[0].source}",
        "",
    ]
    for what, words in by_sense.items():
        lines.append(f"{what}: {', '.join(words)}")
    path = run / WORDS
    replace_file(path, ("\n".join(lines) + "\n").encode())
    return path


def next_lines(run: Path, page: Path, words: Path) -> list[str]:
    """What to do next, with commands that can be typed as they stand."""
    program = program_name()
    example = "The dog didn't enter the house because it was too tired."
    nouns = ", ".join(noun.english for noun in _first_of_each(NOUNS))
    adjectives = ", ".join(drawback.english for drawback in _first_of_each(DRAWBACKS))
    return [
        "To change a word yourself, open this page, which contains the model and needs no network:",
        f"  {page}",
        "To translate a sentence:",
        f"  {program} translate {run} {in_quotes(example)}",
        f"The model knows {len(NOUNS)} nouns ({nouns}, ...)",
        f"and {len(DRAWBACKS)} adjectives ({adjectives}, ...).",
        f"All its words are listed in {words}",
    ]


def _first_of_each(words: Iterable[Any]) -> list[Any]:
    """The first word of each kind."""
    first = {}
    for word in words:
        first.setdefault(word.sense, word)
    return list(first.values())


def program_name() -> str:
    """How this program can be called again from here: `regard` where the shell finds it, else its path."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("regard")
    if found is not None and own.exists() and Path(found).samefile(own):
        return "regard"
    if own.name != "regard":  # python -m regard_lab
        return f"{_from_here(Path(sys.executable))} -m regard_lab"
    return str(_from_here(own))


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def score_lines(result: Evaluation, report: PronounReport, agreement: float | None) -> list[str]:
    """The scores in plain words; those of the field come last."""
    scores = result.scores
    exact = round(scores.exact_match * scores.count)
    lines = [
        f"{exact:,} of {count_of(scores.count, 'translations')} equal the expected one word for word.",
        f"Pronouns: {percent(report.pronouns)} are right; always writing the most frequent one would get "
        f"{percent(report.baseline)}.",
        f"Pairs that differ in one word: in {percent(report.contrast)} of them both pronouns are right.",
        f"Swapped nouns: {percent(report.swaps.followed)} of the pronouns change rightly if their own noun is replaced "
        f"by one of another gender; {percent(report.swaps.kept)} stay right if the other noun is replaced.",
    ]
    if agreement is not None:
        lines.append(
            f"Erased words: {percent(agreement)} of the pronouns depend more on their own noun than on the other one."
        )
    found = report.agreement
    if report.head is not None and found is not None:
        lines += _lines_on_attention(report.head, found)
    lines.append(
        f"BLEU {scores.bleu:.2f} and chrF {scores.chrf:.2f} of 100 (signatures: --json), perplexity "
        f"{result.perplexity:.3f} per id"
    )
    return lines


def _lines_on_attention(head: HeadChoice, found: Agreement) -> list[str]:
    """How often *it* looks at its noun in the encoder, and why a translation can be right without that."""
    compared = "no better than" if found.agreement <= found.by_offset else "better than"
    return [
        f"Attention: articles show a head in which *it* looks at its noun. The encoder's best head for this (head "
        f"{head.head} of layer {head.layer}, counted from 0; chosen on other sentences) is right in "
        f"{percent(found.agreement)} of the sentences. That is {compared} a rule without a model: the word "
        f"{words_away(found.offset)} is right in {percent(found.by_offset)}, a random word in {percent(found.chance)}.",
        "The translator does not need such a head: the decoder writes the pronoun, and reads noun and adjective "
        "itself. In this encoder a word looks at only two words on each side. Encoders that look at all words were "
        "trained too (docs/demo.md).",
        "Attention alone is not an explanation: a model may look at a word without using it, or use a word that an "
        "earlier layer has mixed into its neighbours. Swapping and erasing words shows what it uses.",
    ]


def picture_lines(pictures: Iterable[str]) -> list[str]:
    """The names of the pictures that were drawn, with what they show."""
    names = [Path(picture).name for picture in pictures]
    lines = []
    for pattern, shows in SHOWN.items():
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if matching:
            lines.append(f"{', '.join(matching)}: {shows}")
    return lines


def last_lines(page: Path) -> list[str]:
    """The page once more, and a model in which *it* looks at its noun as articles say."""
    study = read_report("english").figures["it"]
    layer, head = study["chosen"]
    example = study["example"]
    weights = " and ".join(
        f"{of_words[example['animal']]:.2f} if the sentence ends in *{ending}*"
        for ending, of_words in example["weights"].items()
    )
    return [
        f"To change a word of the sentence yourself, open {page}",
        f"In a model of real English *it* looks at *animal*, as articles say: head {layer}.{head} of all-MiniLM-L6-v2 "
        f"gives it the weight {weights}. To see more: {program_name()} lesson relations",
    ]


def percent(share: float) -> str:
    """A share in percent; one below 1 is never written as 100 %.

    >>> percent(1.0), percent(0.9999), percent(0.413)
    ('100 %', '99.9 %', '41.3 %')
    """
    return "100 %" if share >= 1 else f"{min(100 * share, 99.9):.1f} %"


def draw_pair_picture(pair: TranslatedPair, path: Path) -> list[Path]:
    """Draw the pair where both pronouns are right; the paths of what was drawn."""
    if not pair.is_right:
        return []
    draw_pair(pair.known, path, PICTURE_NOTE)
    return [path]
