"""The share of sentences in which the default lens puts the referent above the other noun."""

from __future__ import annotations

from collections.abc import Sequence

from regard.decoding import Translator
from regard.inspection.lenses import explain
from regard.studies.lenses.known import known_sentences
from regard.text.pronouns import PronounSentence


def lens_agreement(translator: Translator, sentences: Sequence[PronounSentence]) -> float | None:
    """How often the default lens gives the referent of *it* a larger relevance than the other noun.

    The written pronoun is explained against the other two, over the source.

    Args:
        translator: a translator trained on the embedded corpus, of any kind.
        sentences: such as `make_split("test", 150)`.

    Returns:
        The share of the sentences whose pronoun is right; None if it is right in none. A random order has 0.5.
    """
    known = known_sentences(translator, sentences)
    if not known:
        return None
    contrasts = [one.contrast for one in known]
    records = explain(translator.model, translator.tokeniser, contrasts, sides=("source",))
    above = sum(
        record.source_scores[one.referent] > record.source_scores[one.other]
        for one, record in zip(known, records, strict=True)
    )
    return above / len(known)
