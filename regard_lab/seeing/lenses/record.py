"""What a lens returns: the signed relevance of each word, and what it took to compute them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from regard.arguments import whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.terminal import LONGEST, shortened, visible
from regard_lab.seeing.watching import Span


@dataclass(frozen=True)
class WordScores:
    """The scores of one contrast while a lens computes them.

    Args:
        source, written: a score for each word; empty where the lens has none.
        passes, backward_passes: rows that went through the model, and back.
        errors, changes: for gradients, the completeness error and the change of the log odds by side.
    """

    source: tuple[float, ...] = ()
    written: tuple[float, ...] = ()
    passes: int = 0
    backward_passes: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, float] = field(default_factory=dict)

    def changed(self, **fields: Any) -> WordScores:
        """A copy with other fields."""
        return replace(self, **fields)


def by_word(scores: torch.Tensor, spans: Sequence[Span]) -> tuple[float, ...]:
    """Scores of ids (length,), summed over the ids of each word.

    >>> by_word(torch.tensor([1.0, 2.0, 4.0]), [("street", range(2)), (".", range(2, 3))])
    (3.0, 4.0)
    """
    listed = scores.detach().double().cpu().tolist()
    return tuple(math.fsum(listed[place] for place in places) for _, places in spans)


BAR, WIDE = 14, 60  # characters on each side of the axis, and of the line that this is for
LEAST_WIDTH = 40
BESIDE = 11  # characters of a line beside the label and the bars: margins, the number, the axis


@brief
@dataclass(frozen=True, kw_only=True)
class Relevance:
    """What a written word depends on, by one lens: a number for each word that the model had read.

    A positive number speaks for the written word, a negative one for the others. Attention has no sign.

    Args:
        lens: "gradients", "erase", "attention" or "rollout".
        word, others: the written word, and the words it is compared with.
        place: index of the word among the written words.
        log_odds: logit of the word minus the log-sum-exp of the others' logits, where the word was written.
        source_words, source_scores: the words of the source, ending with "<end>", and their scores.
        written_words, written_scores: what was already written, from "<begin>", and its scores. No scores where a lens
            has none: the attention of a recurrent translator.
        passes, backward_passes: rows that went through the model, and back through it.
        completeness: of gradients, the larger of both sides' `|sum of scores - change of the log odds|`; else None.
        changes: of gradients, the change of the log odds by side ("source", "written"): the log odds minus those
            without the words of that side.
        note: what the scores of this lens are.

    >>> relevance = Relevance(
    ...     lens="erase", word="es", others=("er",), place=2, log_odds=2.0, source_words=("The", "animal"),
    ...     source_scores=(-0.5, 2.0), written_words=("<begin>",), written_scores=(0.0,), passes=4)
    >>> print(relevance.text(60))
    es rather than er: log odds 2.00, probability 0.881 among these
    source
      The         -0.50            ▒▒▒▒│
      animal      +2.00                │██████████████
    already written
      <begin>     +0.00                │
    lens erase, 4 passes
    """

    lens: str
    word: str
    others: tuple[str, ...]
    place: int
    log_odds: float
    source_words: tuple[str, ...]
    source_scores: tuple[float, ...]
    written_words: tuple[str, ...]
    written_scores: tuple[float, ...]
    passes: int
    backward_passes: int = 0
    completeness: float | None = None
    changes: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def probability(self) -> float:
        """The probability of the word among itself and the others: the logistic function of the log odds."""
        return 1 / (1 + math.exp(-self.log_odds)) if self.log_odds > -700 else 0.0

    @property
    def question(self) -> str:
        """The word and the others, as in "es rather than er or sie"."""
        return f"{visible(self.word)} rather than {' or '.join(map(visible, self.others))}"

    @property
    def cost(self) -> str:
        """The passes and the completeness error in words."""
        back = f" and {self.backward_passes} back" if self.backward_passes else ""
        noun = "pass" if self.passes == 1 else "passes"
        error = "" if self.completeness is None else f"; completeness error {self.completeness:.2g}"
        return f"{self.passes} {noun}{back}{error}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "lens": self.lens,
            "of": self.word,
            "instead_of": list(self.others),
            "place": self.place,
            "log_odds": self.log_odds,
            "probability": self.probability,
            "source": _pairs(self.source_words, self.source_scores),
            "written": _pairs(self.written_words, self.written_scores),
            "passes": self.passes,
            "backward_passes": self.backward_passes,
            "completeness": self.completeness,
            "changes": dict(self.changes),
            "note": self.note,
        }

    def text(self, width: int = 80) -> str:
        """Lines of text with a signed bar for each word; the longest bar is the largest relevance of both sides.

        Args:
            width: the most characters in a line of bars, at least 40.

        Raises:
            ArgumentError: a smaller width.
        """
        if whole("width", width) < LEAST_WIDTH:
            raise ArgumentError(f"width is {width}; the bars need at least {LEAST_WIDTH} characters")
        scores = (*self.source_scores, *self.written_scores)
        largest = max(map(abs, scores), default=0.0)
        words = (*self.source_words, *self.written_words)
        labels = {word: shortened(visible(word), min(LONGEST, width // 3)) for word in words}
        longest = max(10, *map(len, labels.values()))
        bar = BAR + (width - WIDE) // 2 if width >= WIDE else min(BAR, (width - longest - BESIDE) // 2)
        lines = [f"{self.question}: log odds {self.log_odds:.2f}, probability {self.probability:.3f} among these"]
        for title, words, values in (
            ("source", self.source_words, self.source_scores),
            ("already written", self.written_words, self.written_scores),
        ):
            if values:
                lines.append(title)
                for word, score in zip(words, values, strict=True):
                    lines.append(f"  {labels[word]:<{longest}} {_bar(score, largest, bar)}")
        lines += [f"lens {self.lens}, {self.cost}", *([self.note] if self.note else [])]
        return "\n".join(lines)


def _bar(score: float, largest: float, width: int) -> str:
    length = round(abs(score) / largest * width) if largest else 0
    left, right = ("▒" * length, "") if score < 0 else ("", "█" * length)
    return f"{score:+6.2f} {left:>{width}}│{right}".rstrip()


def _pairs(words: Sequence[str], scores: Sequence[float]) -> list[dict[str, Any]]:
    if not scores:
        return []
    return [{"word": word, "score": score} for word, score in zip(words, scores, strict=True)]
