"""Log-probabilities of given texts, by id and by word."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from regard.reprs import brief
from regard_lab.decoding.sampling import log_total
from regard_lab.text import END, PAD, Tokeniser


class ScoredWord(NamedTuple):
    """A word that was written or scored, "<end>" at the end, and its log-probability: the sum over its ids."""

    word: str
    log_probability: float


@brief
@dataclass(frozen=True)
class ScoredText:
    """A text with the log-probabilities that a model gives its ids; a translation has a source.

    `gains` has one for each id, and one more for END where that was scored.
    """

    source: str | None
    text: str
    ids: tuple[int, ...]
    gains: tuple[float, ...]
    words: tuple[ScoredWord, ...]

    @property
    def log_probability(self) -> float:
        """That of the text: the sum over its ids."""
        return math.fsum(self.gains)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        words = [word._asdict() for word in self.words]
        return {**asdict(self), "words": words, "log_probability": self.log_probability}


def words_of(
    tokeniser: Tokeniser, ids: Sequence[int], gains: Sequence[float]
) -> tuple[ScoredWord, ...]:
    """The words of ids with the sums of their log-probabilities, and END where there is a gain for it."""
    scored_ids = list(ids)
    if len(gains) > len(ids):
        scored_ids.append(END)
    words = tokeniser.words(scored_ids)
    return tuple(ScoredWord(word, math.fsum(gains[span.start : span.stop])) for word, span in words)


def gains_of(logits: torch.Tensor, next_ids: torch.Tensor) -> list[list[float]]:
    """The log-probabilities of the next ids (batch, length), padded with PAD, by logits (batch, length, vocab_size).

        logits[b, t, next[b, t]] - log Σ exp logits[b, t]

    >>> gains_of(torch.zeros(1, 2, 8), torch.tensor([[5, PAD]]))
    [[-2.0794415416798357]]
    """
    rows = []
    for text_logits, padded_ids in zip(logits, next_ids, strict=True):
        ids = padded_ids[padded_ids != PAD]
        if not len(ids):
            rows.append([])
            continue
        precise = text_logits[: len(ids)].double()
        gains = precise.gather(1, ids[:, None]) - log_total(precise)
        rows.append(gains[:, 0].tolist())
    return rows
