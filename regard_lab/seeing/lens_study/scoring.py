"""How well the relevance that a lens computes agrees with the words that the model was shown to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from regard_lab.decoding import Translator
from regard_lab.seeing.lens_study.known import KnownSentence, known_sentences
from regard_lab.seeing.lenses import explain
from regard_lab.seeing.lenses.erasing import Erased, erased
from regard_lab.seeing.lenses.passes import Batch, in_batches, run
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text.pronouns import PronounSentence

DELETED = 4  # words


@dataclass(frozen=True, kw_only=True)
class LensRow:
    """One lens over all sentences.

    Args:
        name: a key of `LENS_ROWS`.
        top: share of sentences whose word of the largest score, except *it*, is the referent.
        order: share in which the referent has a larger score than the other noun; a tie does not count.
        cause: share whose word of the largest score, except *it*, is the referent or the adjective.
        deletion: mean fall of the pronoun's probability without the 1, 2, 3 and 4 words of the largest scores.
        passes, backward_passes: rows through the model and back, for each sentence.
        milliseconds: CPU time for each sentence, in batches, on this machine.
    """

    name: str
    top: float
    order: float
    cause: float
    deletion: float
    passes: float
    backward_passes: float
    milliseconds: float

    def to_dict(self) -> dict[str, Any]:
        """The shares with 3 decimals, as JSON values."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def standard_error(share: float, count: int) -> float:
    """The standard error of a share of `count` independent sentences: sqrt(share (1 - share) / count).

    >>> round(standard_error(0.5, 100), 3)
    0.05
    """
    return math.sqrt(max(share * (1 - share), 0.0) / count)


def agreement(known: Sequence[KnownSentence], scores: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The shares `top`, `order` and `cause` of `LensRow`, for scores of the source words of each sentence."""
    top = order = cause = 0
    for one, values in zip(known, scores, strict=True):
        best = max((place for place in range(len(values)) if place != one.it), key=lambda place: values[place])
        top += best == one.referent
        order += values[one.referent] > values[one.other]
        cause += best in (one.referent, one.adjective)
    return top / len(known), order / len(known), cause / len(known)


@torch.no_grad()
def deletion(
    translator: Translator, known: Sequence[KnownSentence], scores: Sequence[Sequence[float]], words: int = DELETED
) -> float:
    """The mean fall of the pronoun's probability without the words of the largest scores.

        mean over sentences and k = 1 ... words of p(all) - p(without the k words of the largest scores)

    The words are replaced in the embeddings by the mean of the sentence's words; p is among the three pronouns.
    """
    falls = []
    with in_eval_mode(translator.model):
        for group in in_batches([one.contrast for one in known]):
            contrasts = [known[index].contrast for index in group]
            batch = Batch.of_contrasts(contrasts, translator.model.embedding.weight.device)
            before = run(translator.model, batch).sigmoid()
            wanted = []
            for row, index in enumerate(group):
                spans = known[index].contrast.source_words
                ranked = sorted(range(len(spans)), key=lambda place: -scores[index][place])
                for count in range(1, words + 1):
                    places = tuple(at for place in ranked[:count] for at in spans[place][1])
                    wanted.append(Erased(row, "source", places))
            after = erased(translator.model, batch, wanted).sigmoid().view(len(group), words)
            falls += (before - after.mean(1)).tolist()
    return math.fsum(falls) / len(falls)


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
