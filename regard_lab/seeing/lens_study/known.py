"""Sentences that a translator gets right, and the words that their pronoun depends on, verified by swaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arguments import count_of, each
from regard.errors import DataError
from regard.reprs import brief
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing.lenses import Contrast, find_contrast
from regard_lab.seeing.lenses.explaining import log_odds
from regard_lab.seeing.referents import word_places
from regard_lab.text import BEGIN, END, Tokeniser
from regard_lab.text.pronouns import (
    PRONOUNS,
    PronounSentence,
    pronoun_of,
    swap_adjective,
    swap_other,
    swap_referent,
)
from regard_lab.text.pronouns.frames import GERMAN_CONJUNCTIONS


@dataclass(frozen=True, eq=False)
class KnownSentence:
    """A sentence with its right pronoun as the translator wrote it.

    Args:
        sentence: the sentence with its referent.
        contrast: the written pronoun against the other two.
        it, referent, other, adjective: indices among `contrast.source_words`; the adjective is that of *it*.
        as_grammar: whether the translator wrote the grammar's words up to the pronoun.
    """

    sentence: PronounSentence
    contrast: Contrast
    it: int
    referent: int
    other: int
    adjective: int
    as_grammar: bool

    @property
    def link_first(self) -> bool:
        """Whether the pronoun comes before both nouns."""
        return self.sentence.derivation.link_first


def known_sentences(
    translator: Translator, sentences: Sequence[PronounSentence]
) -> list[KnownSentence]:
    """The sentences whose pronoun the translator gets right; the others have nothing that could be explained.

    Args:
        translator: any translator with a vocabulary for the corpus.
        sentences: as `regard_lab.text.pronouns.make_split` returns them.
    """
    translations = translator.translate([sentence.source for sentence in sentences])
    known = []
    for sentence, translation in zip(sentences, translations, strict=True):
        explained = _known(translator.tokeniser, sentence, translation)
        if explained is not None:
            known.append(explained)
    return known


def _known(
    tokeniser: Tokeniser, sentence: PronounSentence, translation: Translation
) -> KnownSentence | None:
    if pronoun_of(translation.text) != sentence.pronoun:
        return None
    place = pronoun_place([word for word, _ in tokeniser.words(translation.ids)], sentence.pronoun)
    if place is None:
        return None

    others = [pronoun for pronoun in PRONOUNS if pronoun != sentence.pronoun]
    contrast = find_contrast(
        tokeniser, sentence.source, translation.ids, sentence.pronoun, others, place
    )
    words = [word for word, _ in contrast.source_words]
    it, referent, other = word_places(sentence, words)
    adjective = sentence.derivation.drawback.english.split("-")[-1]
    return KnownSentence(
        sentence=sentence,
        contrast=contrast,
        it=it,
        referent=referent,
        other=other,
        adjective=len(words) - 1 - words[::-1].index(adjective),
        as_grammar=written_before(tokeniser, sentence) == contrast.written[1:],
    )


def pronoun_place(words: Sequence[str], pronoun: str) -> int | None:
    """The index of the pronoun after a conjunction; None if there is none.

    >>> pronoun_place(["Das", "Tier", "schlief", ",", "weil", "es", "müde", "war", "."], "es")
    5
    """
    for place in range(1, len(words)):
        if words[place] == pronoun and words[place - 1].lower() in GERMAN_CONJUNCTIONS:
            return place
    return None


def written_before(tokeniser: Tokeniser, sentence: PronounSentence) -> tuple[int, ...] | None:
    """The ids of the grammar's translation before its pronoun, without BEGIN."""
    ids = tokeniser.encode_target(sentence.target)
    words = tokeniser.words(ids)
    place = pronoun_place([word for word, _ in words], sentence.pronoun)
    return None if place is None else tuple(ids[: words[place][1].start])


SWAPS = {
    "nothing": "no word swapped",
    "source": "the referent in the English, the German so far unchanged",
    "written": "the referent in the German so far, the English unchanged",
    "both": "the referent in both",
    "other": "the other noun in the English",
    "adjective": "the adjective in the English, for one of the other noun",
}


@brief
@dataclass(frozen=True)
class Routes:
    """Mean probability of the written pronoun, among the three, after each swap.

    Args:
        last, first: by the keys of `SWAPS`, for sentences whose subordinate clause comes last and first.
        counts: number of sentences of both kinds.
        verified: for each sentence, whether its cause was verified: the pronoun stays more probable than the other two
            together if the other noun is swapped, and not if the referent is swapped in both texts, nor if the
            adjective is.
    """

    last: Mapping[str, float]
    first: Mapping[str, float]
    counts: tuple[int, int]
    verified: tuple[bool, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; the sentences are counted."""
        return {
            "last": dict(self.last),
            "first": dict(self.first),
            "counts": list(self.counts),
            "verified": sum(self.verified),
            "of": len(self.verified),
        }


def swapped(tokeniser: Tokeniser, known: KnownSentence, seed: int = 0) -> dict[str, Contrast]:
    """The question about the pronoun after each swap; the pronouns that are compared stay the same.

    A noun is replaced by one of the same kind and of the third gender; an adjective by one that fits the other noun.
    """
    sentence = known.sentence
    contrast = known.contrast
    referent = swap_referent(sentence, seed)
    other = swap_other(sentence, seed)
    adjective = swap_adjective(sentence, seed)
    assert referent is not None, "every sentence has a referent that can be swapped"
    assert other is not None, "every sentence has another noun that can be swapped"
    before = written_before(tokeniser, referent)
    assert before is not None, "the grammar writes a pronoun after each conjunction"

    source = _source_side(tokeniser, referent)
    written = _side(tokeniser, "written", [BEGIN, *before])
    versions = {
        "nothing": contrast,
        "source": replace(contrast, **source),
        "written": replace(contrast, **written),
        "both": replace(contrast, **source, **written),
        "other": replace(contrast, **_source_side(tokeniser, other)),
    }
    if adjective is not None:
        versions["adjective"] = replace(contrast, **_source_side(tokeniser, adjective))
    return versions


def _source_side(tokeniser: Tokeniser, sentence: PronounSentence) -> dict[str, Any]:
    return _side(tokeniser, "source", [*tokeniser.encode(sentence.source), END])


def _side(tokeniser: Tokeniser, side: str, ids: list[int]) -> dict[str, Any]:
    """The fields of a contrast for other ids on a side."""
    return {side: tuple(ids), f"{side}_words": tuple(tokeniser.words(ids))}


Shares = Mapping[str, float]  # the probability of the pronoun, by the keys of `SWAPS`


def measure_routes(translator: Translator, known: Sequence[KnownSentence], seed: int = 0) -> Routes:
    """Swap words of sentences whose translation up to the pronoun is the grammar's, and read the pronoun again.

    Args:
        translator: the translator that wrote the sentences.
        known: as `known_sentences` returns them; only those with `as_grammar` are swapped, for the German that was
            written before a swapped noun is the grammar's.
        seed: of the new words.

    Returns:
        The routes; `verified` is False for a sentence that could not be swapped.

    Raises:
        DataError: no sentence can be swapped.
    """
    known = list(each("known", known, "known sentences"))
    versions = []
    contrasts = []
    for sentence in known:
        of_sentence = swapped(translator.tokeniser, sentence, seed) if sentence.as_grammar else {}
        versions.append(of_sentence)
        contrasts += of_sentence.values()
    if not contrasts:
        raise DataError(
            f"of {count_of(len(known), 'sentences')} none is translated as by the grammar, so no word can be swapped"
        )

    odds = torch.tensor(log_odds(translator.model, contrasts), dtype=torch.float64)
    probabilities = iter(odds.sigmoid().tolist())
    last: list[Shares] = []
    first: list[Shares] = []
    verified = []
    for sentence, of_sentence in zip(known, versions, strict=True):
        shares = {swap: next(probabilities) for swap in of_sentence}
        verified.append(_is_verified(shares))
        if shares:
            (first if sentence.link_first else last).append(shares)
    return Routes(_means(last), _means(first), (len(last), len(first)), tuple(verified))


def _means(shares: Sequence[Shares]) -> dict[str, float]:
    """The mean share after each swap, over the sentences that have it."""
    means = {}
    for swap in SWAPS:
        values = [of_sentence[swap] for of_sentence in shares if swap in of_sentence]
        if values:
            means[swap] = sum(values) / len(values)
    return means


def _is_verified(shares: Shares) -> bool:
    stays = all(shares.get(swap, 0.0) > 0.5 for swap in ("nothing", "other"))
    falls = all(shares.get(swap, 1.0) < 0.5 for swap in ("both", "adjective"))
    return stays and falls
