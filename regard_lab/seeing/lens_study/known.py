"""Sentences of the embedded corpus that a translator gets right, with the words that their pronoun depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard_lab.decoding import Translation, Translator
from regard_lab.seeing.lenses import Contrast, find_contrast
from regard_lab.seeing.referents import word_places
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import LINKS, PRONOUNS, PronounSentence, pronoun_of


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


def known_sentences(translator: Translator, sentences: Sequence[PronounSentence]) -> list[KnownSentence]:
    """The sentences whose pronoun the translator gets right; the others have nothing that could be explained.

    Args:
        translator: any translator with a vocabulary for the corpus.
        sentences: as `regard_lab.text.pronouns.make_split` returns them.
    """
    translations = translator.translate([sentence.source for sentence in sentences])
    pairs = zip(sentences, translations, strict=True)
    return [one for pair in pairs if (one := _known(translator.tokeniser, *pair)) is not None]


def _known(tokeniser: Tokeniser, sentence: PronounSentence, translation: Translation) -> KnownSentence | None:
    if pronoun_of(translation.text) != sentence.pronoun:
        return None
    ids = list(translation.ids)
    place = pronoun_place([word for word, _ in tokeniser.words(ids)], sentence.pronoun)
    if place is None:
        return None
    others = [pronoun for pronoun in PRONOUNS if pronoun != sentence.pronoun]
    contrast = find_contrast(tokeniser, sentence.source, ids, sentence.pronoun, others, place)
    words = [word for word, _ in contrast.source_words]
    it, referent, other = word_places(sentence, words)
    adjective = len(words) - 1 - words[::-1].index(sentence.derivation.drawback.english.split("-")[-1])
    expected = written_before(tokeniser, sentence)
    return KnownSentence(
        sentence, contrast, it, referent, other, adjective, expected is not None and expected == contrast.written[1:]
    )


def pronoun_place(words: Sequence[str], pronoun: str) -> int | None:
    """The index of the pronoun after a conjunction; None if there is none.

    >>> pronoun_place(["Das", "Tier", "schlief", ",", "weil", "es", "müde", "war", "."], "es")
    5
    """
    for place in range(1, len(words)):
        if words[place] == pronoun and words[place - 1].lower() in _CONJUNCTIONS:
            return place
    return None


_CONJUNCTIONS = frozenset(link.german for link in LINKS)


def written_before(tokeniser: Tokeniser, sentence: PronounSentence) -> tuple[int, ...] | None:
    """The ids of the grammar's translation before its pronoun, without BEGIN."""
    ids = tokeniser.encode_target(sentence.target)
    words = tokeniser.words(ids)
    place = pronoun_place([word for word, _ in words], sentence.pronoun)
    return None if place is None else tuple(ids[: words[place][1].start])
