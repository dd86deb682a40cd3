"""What a lens returns: the signed relevance of each word, what it took to compute them, and both as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from regard.arguments import of_kind, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.canvas import (
    Box,
    axes_in,
    colours,
    dependence_colours,
    fill,
    is_dark,
    label_texts,
    saved_figure,
    text_width,
    wrapped,
    write_text,
)
from regard_lab.seeing.palette import FAINT, INK, UNSEEN
from regard_lab.seeing.terminal import LONGEST, shortened, visible
from regard_lab.seeing.watching import Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Found = dict[str, Any]  # what a lens computes for one contrast, by the fields of `Relevance`


def by_word(relevances: torch.Tensor, spans: Sequence[Span]) -> tuple[float, ...]:
    """Relevances of ids (length,), summed over the ids of each word.

    >>> by_word(torch.tensor([1.0, 2.0, 4.0]), [("street", range(2)), (".", range(2, 3))])
    (3.0, 4.0)
    """
    values = relevances.detach().double().cpu().tolist()
    return tuple(math.fsum(values[place] for place in ids) for _, ids in spans)


# Characters:
BAR = 14  # on each side of the axis, in a line of USUAL_WIDTH
USUAL_WIDTH = 60
LEAST_WIDTH = 40
BESIDE = 11  # of a line beside the label and the bars: margins, the number, the axis


class _SideScores(NamedTuple):
    """The words of a side and their relevances; none if the lens has none."""

    side: str
    words: tuple[str, ...]
    scores: tuple[float, ...]

    def to_list(self) -> list[dict[str, Any]]:
        if not self.scores:
            return []
        pairs = zip(self.words, self.scores, strict=True)
        return [{"word": word, "score": score} for word, score in pairs]


@brief
@dataclass(frozen=True, kw_only=True)
class Relevance:
    """What a written word depends on, by one lens: a number for each word that the model had read.

    A positive number supports the written word, a negative one for the others. Attention has no sign.

    Args:
        lens: "gradients", "erase", "attention" or "rollout".
        word, others: the written word, and the words it is compared with.
        place: index of the word among the written words.
        log_odds: logit of the word minus the log-sum-exp of the others' logits, where the word was written.
        source_words, source_scores: the words of the source, ending with "<end>", and their relevances.
        written_words, written_scores: what was already written, from "<begin>", and its relevances; none where a lens
            has none: the attention of a recurrent translator.
        passes, backward_passes: rows that went through the model, and back through it.
        completeness: of gradients, the larger of both sides' `|sum of relevances - change of the log odds|`; else None.
        changes: of gradients, the change of the log odds by side ("source", "written"): the log odds minus those
            without the words of that side.
        note: what the relevances of this lens are.

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
    source_scores: tuple[float, ...] = ()
    written_words: tuple[str, ...]
    written_scores: tuple[float, ...] = ()
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
    def are_shares(self) -> bool:
        """Whether the numbers are shares of attention, which have no sign."""
        return self.lens in ("attention", "rollout")

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

    @property
    def _sides(self) -> tuple[_SideScores, _SideScores]:
        return (
            _SideScores("source", self.source_words, self.source_scores),
            _SideScores("written", self.written_words, self.written_scores),
        )

    @property
    def largest(self) -> float:
        """The size of the largest relevance of both sides."""
        return max(map(abs, (*self.source_scores, *self.written_scores)), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        source, written = self._sides
        return {
            "lens": self.lens,
            "of": self.word,
            "instead_of": list(self.others),
            "place": self.place,
            "log_odds": self.log_odds,
            "probability": self.probability,
            "source": source.to_list(),
            "written": written.to_list(),
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
            raise ArgumentError(
                f"width is {width}; the bars need at least {LEAST_WIDTH} characters"
            )
        labels = {}
        for word in (*self.source_words, *self.written_words):
            labels[word] = shortened(visible(word), min(LONGEST, width // 3))
        label_width = max(10, *map(len, labels.values()))
        if width >= USUAL_WIDTH:
            bar_width = BAR + (width - USUAL_WIDTH) // 2
        else:
            bar_width = min(BAR, (width - label_width - BESIDE) // 2)

        lines = [
            f"{self.question}: log odds {self.log_odds:.2f}, probability {self.probability:.3f} among these"
        ]
        for side, words, scores in self._sides:
            if not scores:
                continue
            lines.append("already written" if side == "written" else side)
            for word, score in zip(words, scores, strict=True):
                bar = _bar(score, self.largest, bar_width)
                lines.append(f"  {labels[word]:<{label_width}} {bar}")
        lines.append(f"lens {self.lens}, {self.cost}")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def _bar(score: float, largest: float, width: int) -> str:
    """A number, and its bar on one side of the axis."""
    length = round(abs(score) / largest * width) if largest else 0
    left = "▒" * length if score < 0 else ""
    right = "" if score < 0 else "█" * length
    return f"{score:+6.2f} {left:>{width}}│{right}".rstrip()


MOST_WORDS = 120
# Points:
WORD_SIZE = 11.0
NUMBER_SIZE = 8.0
TITLE_SIZE = 12.5
LABEL_SIZE = 9.0
NOTE_SIZE = 7.5
# Inches:
WIDTH = 9.0
EDGE = 0.3
INSIDE = WIDTH - 2 * EDGE
BOX_HEIGHT = 0.32
BASE_LINE = 0.21  # below the upper edge of a box
GAP = 0.07  # between boxes
LINE_HEIGHT = 0.66
SCALE_WIDTH = 1.5
SCALE_HEIGHT = 0.12


class PlacedWord(NamedTuple):
    """A word in its box, which is wide enough for its number too, in inches. The explained word has no relevance."""

    label: str
    relevance: float | None
    left: float
    width: float
    line: int


def placed(words: Sequence[str], relevances: Sequence[float | None]) -> list[PlacedWord]:
    """The words from left to right, in as many lines as they need."""
    boxes: list[PlacedWord] = []
    left = 0.0
    line = 0
    for label, relevance in zip(label_texts(words), relevances, strict=True):
        width = max(text_width(label, WORD_SIZE) + 0.16, 0.46)
        if left and left + width > INSIDE:
            left = 0.0
            line += 1
        boxes.append(PlacedWord(label, relevance, left, width, line))
        left += width + GAP
    return boxes


def draw_relevance(relevance: Relevance, path: str | Path, *, title: str = "") -> None:
    """Draw the words with their signed relevance: orange supports the written word, grey the others.

    Attention has no sign; its shares are blue.

    Args:
        relevance: what `relevance` returns.
        path: a PNG or SVG; an existing file is replaced atomically.
        title: a line above the words; by default the written word and the others.

    Raises:
        ArgumentError: more than 120 words on a side, a path that ends in neither .png nor .svg, or a
            folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile
    >>> record = Relevance(lens="erase", word="es", others=("er",), place=0, log_odds=2.0, source_words=("animal",),
    ...                    source_scores=(2.0,), written_words=("<begin>",), written_scores=(0.0,), passes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_relevance(record, f"{folder}/es.png")
    ...     Path(folder, "es.png").read_bytes()[1:4]
    b'PNG'
    """
    of_kind("relevance", relevance, Relevance, "the Relevance that relevance returns")
    words = max(len(relevance.source_words), len(relevance.written_words))
    if words > MOST_WORDS:
        raise ArgumentError(
            f"one side has {words} words and a picture shows at most {MOST_WORDS}; explain a shorter sentence, or "
            f"use the numbers in to_dict()"
        )
    with saved_figure(path) as figure:
        draw_words(figure, relevance, title)


def draw_words(figure: Figure, relevance: Relevance, title: str = "") -> None:
    """Set the size of the figure, and draw title, words, scale and note."""
    headline = f"{relevance.question}: log odds {relevance.log_odds:.2f}, lens {relevance.lens}"
    names = ("source", "already written, and the word that is explained")
    cost = f"{relevance.cost[:1].upper()}{relevance.cost[1:]}."
    note = wrapped(f"{relevance.note} {cost}", NOTE_SIZE, INSIDE)
    draw_page(figure, relevance, title or relevance.question, headline, names, note)


def draw_page(
    figure: Figure,
    relevance: Relevance,
    title: str,
    headline: str,
    names: tuple[str, str],
    note: str,
    more: float = 0,
) -> float:
    """Set the size of the figure, and draw title, headline, the words of both sides, their scale and the note.

    Returns:
        The top of `more` inches between scale and note, which are left for other parts.
    """
    title = wrapped(title, TITLE_SIZE, INSIDE)
    source_name, written_name = names
    sides: dict[str, list[PlacedWord]] = {}
    if relevance.source_scores:
        sides[source_name] = placed(relevance.source_words, relevance.source_scores)
    if relevance.written_scores:
        words = (*relevance.written_words, relevance.word)
        sides[written_name] = placed(words, (*relevance.written_scores, None))

    top = EDGE + 0.24 * len(title.splitlines()) + 0.38
    height = top + sum(map(row_height, sides.values())) + 0.48 + more
    figure.set_size_inches(WIDTH, height + 0.16 * len(note.splitlines()) + EDGE)
    write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")
    write_text(figure, headline, EDGE, top - 0.36, LABEL_SIZE, color=FAINT)
    write_text(figure, note, EDGE, height, NOTE_SIZE, color=FAINT)
    largest = relevance.largest
    for name, words in sides.items():
        top = draw_row(figure, name, words, top, largest, are_shares=relevance.are_shares)
    if not relevance.are_shares:
        draw_signed_scale(figure, EDGE, top + 0.1, largest, relevance.word)
    return top + 0.48


def row_height(words: Sequence[PlacedWord]) -> float:
    """The height in inches that `draw_row` takes."""
    return 0.27 + LINE_HEIGHT * (words[-1].line + 1) + 0.05


def draw_row(
    figure: Figure,
    name: str,
    words: Sequence[PlacedWord],
    top: float,
    largest: float,
    *,
    are_shares: bool = False,
) -> float:
    """Draw the words of one side under their name; return the top of what comes below.

    The explained word has an outline and no colour. Shares of attention have no sign.
    """
    form = ".2f" if are_shares else "+.2f"
    write_text(figure, name, EDGE, top, LABEL_SIZE, color=FAINT, style="italic")
    for word in words:
        box = Box(EDGE + word.left, top + 0.27 + LINE_HEIGHT * word.line, word.width, BOX_HEIGHT)
        middle = box.left + word.width / 2
        ink = INK
        if word.relevance is None:
            fill(figure, box, "white", INK, 1.6)
        else:
            share = word.relevance / largest if largest else 0.0
            colour = colours()(share) if are_shares else signed_colour(share)
            ink = "white" if is_dark(colour) else INK
            fill(figure, box, colour, UNSEEN, 0.6)
            number = f"{word.relevance:{form}}"
            below = box.top + BOX_HEIGHT + 0.04
            write_text(figure, number, middle, below, NUMBER_SIZE, ha="center", color=FAINT)
        style = {"ha": "center", "va": "baseline", "color": ink}
        write_text(figure, word.label, middle, box.top + BASE_LINE, WORD_SIZE, **style)
    return top + row_height(words)


def signed_colour(share: float) -> tuple[float, ...]:
    """The colour of a relevance: white for 0, the ends of the scale for a share of 1 and -1 of the largest."""
    return dependence_colours()(0.5 + 0.5 * share)


def draw_signed_scale(figure: Figure, left: float, top: float, largest: float, word: str) -> None:
    """Draw the colour scale with its two ends, from against the word to for it."""
    label = f"against “{word}” "
    start = left + text_width(label, NUMBER_SIZE) + 0.06
    axes = axes_in(figure, Box(start, top, SCALE_WIDTH, SCALE_HEIGHT))
    shown = [signed_colour(step / 20) for step in range(-20, 21)]
    axes.imshow([shown], aspect="auto", interpolation="nearest")
    axes.set_axis_off()
    write_text(figure, label, left, top - 0.01, NUMBER_SIZE, color=FAINT)
    end = f" for “{word}”; the ends are ±{largest:.2f} of log odds"
    write_text(figure, end, start + SCALE_WIDTH + 0.04, top - 0.01, NUMBER_SIZE, color=FAINT)
