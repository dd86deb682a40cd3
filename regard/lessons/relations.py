"""Which word belongs to which, by the grammar of the corpus, and how often a head looks from one to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.errors import DataError
from regard.text.pronouns import PronounSentence

RELATIONS = {"verb to subject": "verb", "adjective to noun": "adjective", "it to referent": "*it*"}
_HELPERS = frozenset({"did", "was", "not"})  # "was not crossed by": the verb is "crossed"

Link = tuple[int, int]  # places of the word that looks and of the word that it belongs to


@dataclass(frozen=True)
class Score:
    """How often one word looks most at the other.

    Args:
        shares: (layers, heads), the share of links whose first word looks more at the second than at any other word
            but itself; a tie counts as no.
        count: links.
        chance: the share of a blind choice among those words.
        offset, by_offset: the number of words ahead (back where negative) that is right most often, and how often: a
            head that scores no more may do no more than look at a neighbour.
    """

    shares: torch.Tensor
    count: int
    chance: float
    offset: int
    by_offset: float


def links_of(sentence: PronounSentence, words: Sequence[str]) -> dict[str, list[Link]]:
    """The links of each relation among the words of a source, whose punctuation stands apart.

    Raises:
        DataError: the words are not those of the sentence.

    >>> from regard.text.pronouns import ARTICLE_SENTENCES
    >>> words = "The animal didn ' t cross the street because it was too tired . <end>".split()
    >>> links_of(ARTICLE_SENTENCES[0], words)
    {'verb to subject': [(5, 1)], 'adjective to noun': [], 'it to referent': [(9, 1)]}
    """
    made = sentence.derivation
    lower = [word.lower() for word in words]

    def place(word: str, after: int = -1) -> int:
        if word not in lower[after + 1 :]:
            raise DataError(f"{word!r} of {sentence.source!r} is not among the words {' '.join(words)}")
        return lower.index(word, after + 1)

    subject, thing = place(made.subject.english), place(made.object.english)
    verbs = {
        next(word for word in form.split() if word not in _HELPERS) for form in (made.frame.plain, made.frame.negated)
    }
    verb = min(place(form, subject) for form in verbs if form in lower[subject + 1 :])
    described = ((subject, made.subject_attribute), (thing, made.object_attribute))
    return {
        "verb to subject": [(verb, subject)],
        "adjective to noun": [(noun - 1, noun) for noun, attribute in described if attribute is not None],
        "it to referent": [(place("it"), place(made.referent.english))],
    }  # fmt: skip


def score(maps: Sequence[torch.Tensor], links: Sequence[Sequence[Link]]) -> Score:
    """How often each head looks along the links, over all sentences.

    Args:
        maps: weights of each sentence, (layers, heads, words, words).
        links: of each sentence.

    Raises:
        DataError: there is no link in any of them.

    >>> next_word = torch.eye(3).roll(1, 1)[None, None]
    >>> found = score([next_word], [[(0, 1), (1, 0)]])
    >>> found.shares.tolist(), found.chance
    ([[0.5]], 0.5)
    """
    hits, chances, offsets = [], [], Counter()
    for weights, pairs in zip(maps, links, strict=True):
        for word, other in pairs:
            rivals = [place for place in range(weights.shape[-1]) if place not in (word, other)]
            row = weights[:, :, word]  # (layers, heads, words)
            hits.append(row[..., other] > row[..., rivals].amax(-1))
            chances.append(1 / (len(rivals) + 1))
            offsets[other - word] += 1
    if not hits:
        raise DataError("no sentence holds such a pair of words; give more sentences")
    offset, often = min(offsets.items(), key=lambda found: (-found[1], abs(found[0]), found[0]))
    count = len(hits)
    shares = torch.stack(hits).double().mean(0)
    return Score(shares, count, sum(chances) / count, offset, often / count)
