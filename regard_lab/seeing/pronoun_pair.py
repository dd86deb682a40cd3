"""One picture of two English sentences that differ in one word, and of their translations, whose pronouns differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard_lab.seeing.canvas import Box, fill, saved_figure, text_width, wrapped, write_text
from regard_lab.seeing.lenses.record import Relevance
from regard_lab.seeing.palette import DEPENDS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGE = 0.35  # inches of margin
GAP = 0.11  # between words
WORD_SIZE = 13.0  # points
TITLE_SIZE = 14.0
NOTE_SIZE = 9.5
LINE_OF_TEXT = 0.3  # inches from one line of words to the next
BASELINE = 0.19  # from the upper edge of a word down to the line that it stands on
BETWEEN_LANGUAGES = 0.95
OF_A_SENTENCE = BETWEEN_LANGUAGES + LINE_OF_TEXT + 0.45
LEAST_SHARE = 0.05  # a thinner line is not drawn
THICKEST = 9.0  # points, of a line that has the whole scale
DEPENDS_COLOUR = DEPENDS[-2]  # of the pronoun and its lines, as in the explorer
CHANGED_COLOUR = INK


@dataclass(frozen=True)
class PronounTranslation:
    """A sentence with *it*, its translation, and how much each English word counted for the German pronoun.

    Args:
        source, written: the English and the German sentence.
        changed: the English word that the other sentence lacks.
        meant: the noun that the pronoun stands for, with its German article: "das Tier".
        meant_in_english: the same in English: "the animal".
        lens: by how much the log odds of the pronoun fall without each English word.
        attention: how much one head of the decoder looked at each English word while the pronoun was written.
    """

    source: str
    written: str
    changed: str
    meant: str
    meant_in_english: str
    lens: Relevance
    attention: Relevance

    @property
    def pronoun(self) -> str:
        return self.lens.word

    @property
    def looked_at(self) -> tuple[str, float]:
        """The English word that the head looked at most, and its weight."""
        pairs = zip(self.attention.source_words, self.attention.source_scores, strict=True)
        return max(pairs, key=lambda pair: pair[1])

    @property
    def falls(self) -> dict[str, float]:
        """By how much the log odds of the pronoun fall without each English word; 0 where they rise."""
        pairs = zip(self.lens.source_words, self.lens.source_scores, strict=True)
        return {word: max(score, 0.0) for word, score in pairs}

    @property
    def is_decided_by_changed(self) -> bool:
        """Whether the model no longer writes the pronoun if the changed word is erased."""
        return self.probability_without(self.changed) < min(self.lens.probability, 0.5)

    @property
    def without_changed(self) -> str:
        """What happens to the probability of the pronoun if the changed word is erased, as part of a sentence."""
        before = self.lens.probability
        after = self.probability_without(self.changed)
        if self.is_decided_by_changed:
            return f"falls from {before:.2f} to {after:.2f}"
        return f"is still {after:.2f}"

    def probability_without(self, word: str) -> float:
        """The probability of the pronoun, among es, er and sie, if an English word is erased."""
        place = self.lens.source_words.index(word)
        log_odds = self.lens.log_odds - self.lens.source_scores[place]
        return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def changed_words(first: str, second: str) -> tuple[str, str]:
    """The first word in which two sentences differ, of each.

    >>> changed_words("It was too tired.", "It was too wide.")
    ('tired', 'wide')
    """
    for pair in zip(first.split(), second.split(), strict=False):
        if pair[0] != pair[1]:
            return pair[0].strip(".,"), pair[1].strip(".,")
    return "", ""


def draw_pair(pair: Sequence[PronounTranslation], path: str | Path, note: str = "") -> None:
    """Draw sentences one below the other: the changed word in a frame, and from each pronoun lines to English words.

    The thicker a line, the more the pronoun depends on the word. All sentences share one scale: a line has the
    whole thickness if the fall of the log odds without its word is the largest sum of falls of a sentence.

    Raises:
        ArgumentError: a path that ends in neither .png, .svg nor .pdf, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.
    """
    longest = 0.0
    for sentence in pair:
        longest = max(longest, _width_of(sentence.source), _width_of(sentence.written))
    width = max(longest + 2 * EDGE, 6.5)
    words = wrapped(note, NOTE_SIZE, width - 2 * EDGE, lines=4)
    height = EDGE + 0.5 + OF_A_SENTENCE * len(pair) + 0.2 * (words.count("\n") + 1) + EDGE
    with saved_figure(path) as figure:
        figure.set_size_inches(width, height)
        title = "One word changes, and the pronoun with it"
        write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")
        top = EDGE + 0.55
        whole = max(sum(sentence.falls.values()) for sentence in pair)
        for sentence in pair:
            _draw_sentence(figure, sentence, whole, top)
            top += OF_A_SENTENCE
        write_text(figure, words, EDGE, top, NOTE_SIZE, color=FAINT)


def _width_of(text: str) -> float:
    words = text.split()
    return sum(text_width(word, WORD_SIZE, "bold") for word in words) + GAP * len(words)


def _draw_sentence(figure: Figure, sentence: PronounTranslation, whole: float, top: float) -> None:
    """English above, German below, and the lines between them; `whole` is the fall of the thickest possible line."""
    english = _places(sentence.source, EDGE)
    german = _places(sentence.written, EDGE)
    below = top + BETWEEN_LANGUAGES
    pronoun = _first_place(german, sentence.pronoun, last=True)

    falls = sentence.falls
    for word, box in english:
        share = falls.get(word.strip(".,"), 0.0) / whole if whole else 0.0
        if share >= LEAST_SHARE:
            _draw_line(figure, box, pronoun, top, below, share)
    for word, box in english:
        if word.strip(".,") == sentence.changed:
            frame = Box(box.left - 0.05, top - 0.05, box.width + 0.1, LINE_OF_TEXT + 0.02)
            fill(figure, frame, "white", edge=CHANGED_COLOUR, line=1.6)
        _write_word(figure, word, box.left, top)
    for word, box in german:
        is_pronoun = box is pronoun
        style = {"weight": "bold", "color": DEPENDS_COLOUR} if is_pronoun else {}
        _write_word(figure, word, box.left, below, **style)
    meaning = (
        f"{sentence.pronoun} = {sentence.meant}, {sentence.meant_in_english}. Without “{sentence.changed}” its "
        f"probability {sentence.without_changed}."
    )
    write_text(figure, meaning, EDGE, below + LINE_OF_TEXT, NOTE_SIZE, color=DEPENDS_COLOUR)


def _places(text: str, left: float) -> list[tuple[str, Box]]:
    """Each word of a line with its box; the first box begins at `left`."""
    places = []
    for word in text.split():
        width = text_width(word, WORD_SIZE)
        places.append((word, Box(left, 0.0, width, LINE_OF_TEXT)))
        left += width + GAP
    return places


def _first_place(places: list[tuple[str, Box]], word: str, *, last: bool = False) -> Box:
    """The box of a word; with `last` that of its last occurrence, which is the pronoun behind the conjunction."""
    boxes = [box for text, box in places if text.strip(".,").lower() == word]
    return boxes[-1 if last else 0]


def _draw_line(
    figure: Figure, word: Box, pronoun: Box, top: float, below: float, share: float
) -> None:
    """A line from the pronoun up to an English word."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    start = (pronoun.left + pronoun.width / 2, below - 0.03)
    stop = (word.left + word.width / 2, top + LINE_OF_TEXT)
    line = Line2D(
        [start[0] / width, stop[0] / width],
        [1 - start[1] / height, 1 - stop[1] / height],
        transform=figure.transFigure,
        color=DEPENDS_COLOUR,
        alpha=0.6,
        linewidth=THICKEST * share,
        solid_capstyle="round",
    )
    figure.add_artist(line)


def _write_word(figure: Figure, word: str, left: float, top: float, **style: Any) -> None:
    """Write a word on the baseline that all words of its sentence share."""
    write_text(figure, word, left, top + BASELINE, WORD_SIZE, va="baseline", **style)
