"""What a lens returns: the signed relevance of each word, what it took to compute them, and both as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import of_kind, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.canvas import (
    FAINT,
    INK,
    UNSEEN,
    checked_path,
    is_dark,
    label_texts,
    new_figure,
    save,
    text_width,
    wrapped,
    write_text,
)
from regard_lab.seeing.terminal import LONGEST, shortened, visible
from regard_lab.seeing.watching import Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class WordRelevances:
    """The relevances of one contrast while a lens computes them.

    Args:
        source, written: a relevance for each word; empty where the lens has none.
        passes, backward_passes: rows that went through the model, and back.
        errors, changes: for gradients, the completeness error and the change of the log odds by side.
    """

    source: tuple[float, ...] = ()
    written: tuple[float, ...] = ()
    passes: int = 0
    backward_passes: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, float] = field(default_factory=dict)


def by_word(relevances: torch.Tensor, spans: Sequence[Span]) -> tuple[float, ...]:
    """Relevances of ids (length,), summed over the ids of each word.

    >>> by_word(torch.tensor([1.0, 2.0, 4.0]), [("street", range(2)), (".", range(2, 3))])
    (3.0, 4.0)
    """
    listed = relevances.detach().double().cpu().tolist()
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
        relevances = (*self.source_scores, *self.written_scores)
        largest = max(map(abs, relevances), default=0.0)
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
                for word, value in zip(words, values, strict=True):
                    lines.append(f"  {labels[word]:<{longest}} {_bar(value, largest, bar)}")
        lines += [f"lens {self.lens}, {self.cost}", *([self.note] if self.note else [])]
        return "\n".join(lines)


def _bar(value: float, largest: float, width: int) -> str:
    length = round(abs(value) / largest * width) if largest else 0
    left, right = ("▒" * length, "") if value < 0 else ("", "█" * length)
    return f"{value:+6.2f} {left:>{width}}│{right}".rstrip()


def _pairs(words: Sequence[str], relevances: Sequence[float]) -> list[dict[str, Any]]:
    if not relevances:
        return []
    return [{"word": word, "score": value} for word, value in zip(words, relevances, strict=True)]


SIGNED = (
    "RdBu"  # red against, blue for the written word; distinct for colour-blind readers, and the numbers show it too
)
MOST_WORDS = 120
WIDTH, EDGE = 9.0, 0.3  # inches
WORD_SIZE, NUMBER_SIZE, TITLE_SIZE, LABEL_SIZE, NOTE_SIZE = 11.0, 8.0, 12.5, 9.0, 7.5  # points
BOX, BASE, GAP, LINE = 0.32, 0.21, 0.07, 0.66  # inches: a box's height, its base line, between boxes and lines
SCALE_WIDTH, SCALE_HEIGHT = 1.5, 0.12


@dataclass(frozen=True)
class Word:
    """A word in its box; all lengths are in inches. The explained word has no relevance."""

    label: str
    relevance: float | None
    left: float
    line: int

    @property
    def width(self) -> float:
        return box_width(self.label)


def box_width(label: str) -> float:
    """The width of a word's box in inches, wide enough for its number too."""
    return max(text_width(label, WORD_SIZE) + 0.16, 0.46)


def placed(words: Sequence[str], relevances: Sequence[float | None], width: float) -> list[Word]:
    """The words from left to right, in as many lines as they need."""
    boxes: list[Word] = []
    left, line = 0.0, 0
    for label, value in zip(label_texts(words), relevances, strict=True):
        own = box_width(label)
        if left and left + own > width:
            left, line = 0.0, line + 1
        boxes.append(Word(label, value, left, line))
        left += own + GAP
    return boxes


def draw_relevance(relevance: Relevance, path: str | Path, *, title: str = "") -> None:
    """Draw the words with their signed relevance: blue speaks for the written word, red for the others.

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
    >>> one = Relevance(lens="erase", word="es", others=("er",), place=0, log_odds=2.0, source_words=("animal",),
    ...                 source_scores=(2.0,), written_words=("<begin>",), written_scores=(0.0,), passes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_relevance(one, f"{folder}/es.png")
    ...     Path(folder, "es.png").read_bytes()[1:4]
    b'PNG'
    """
    of_kind("relevance", relevance, Relevance, "the Relevance that relevance returns")
    path = checked_path(path)
    if (longest := max(len(relevance.source_words), len(relevance.written_words))) > MOST_WORDS:
        raise ArgumentError(
            f"one side has {longest} words and a picture shows at most {MOST_WORDS}; explain a shorter sentence, or "
            f"use the numbers in to_dict()"
        )
    with new_figure() as figure:
        draw_words(figure, relevance, title)
        save(figure, path)


def draw_words(figure: Figure, relevance: Relevance, title: str = "") -> None:
    """Set the size of the figure, and draw title, words, scale and note."""
    title = wrapped(title or relevance.question, TITLE_SIZE, WIDTH - 2 * EDGE)
    parts = list(_parts(relevance))
    top = EDGE + 0.24 * len(title.splitlines()) + 0.38
    note = wrapped(f"{relevance.note} {relevance.cost[:1].upper()}{relevance.cost[1:]}.", NOTE_SIZE, WIDTH - 2 * EDGE)
    height = top + sum(row_height(words) for _, words in parts)
    figure.set_size_inches(WIDTH, height + 0.48 + 0.16 * len(note.splitlines()) + EDGE)
    write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")
    odds = f"{relevance.question}: log odds {relevance.log_odds:.2f}, lens {relevance.lens}"
    write_text(figure, odds, EDGE, top - 0.36, LABEL_SIZE, color=FAINT)
    largest = max(
        (abs(word.relevance) for _, words in parts for word in words if word.relevance is not None), default=0.0
    )
    for name, words in parts:
        top = draw_row(figure, name, words, top, largest)
    draw_signed_scale(figure, EDGE, top + 0.1, largest, relevance.word)
    write_text(figure, note, EDGE, top + 0.48, NOTE_SIZE, color=FAINT)


def row_height(words: Sequence[Word]) -> float:
    """The height in inches that `draw_row` takes."""
    return 0.27 + LINE * (words[-1].line + 1) + 0.05


def draw_row(
    figure: Figure, name: str, words: Sequence[Word], top: float, largest: float, form: str = "{:+.2f}"
) -> float:
    """Draw the words of one side under their name; return the top of what comes below."""
    write_text(figure, name, EDGE, top, LABEL_SIZE, color=FAINT, style="italic")
    for word in words:
        draw_word(figure, word, EDGE + word.left, top + 0.27 + LINE * word.line, largest, form)
    return top + row_height(words)


def _parts(relevance: Relevance) -> Iterator[tuple[str, list[Word]]]:
    width = WIDTH - 2 * EDGE
    if relevance.source_scores:
        yield "source", placed(relevance.source_words, relevance.source_scores, width)
    if relevance.written_scores:
        words, relevances = (*relevance.written_words, relevance.word), (*relevance.written_scores, None)
        yield "already written, and the word that is explained", placed(words, relevances, width)


def draw_word(figure: Figure, word: Word, left: float, top: float, largest: float, form: str = "{:+.2f}") -> None:
    """Draw one box with its word and its relevance; the explained word has an outline and no colour."""
    from matplotlib.patches import FancyBboxPatch

    width, height = figure.get_size_inches()
    colour, explained = signed_colour(word.relevance, largest), word.relevance is None
    box = FancyBboxPatch(
        (left / width, 1 - (top + BOX) / height), word.width / width, BOX / height, boxstyle="square,pad=0",
        facecolor="white" if explained else colour, edgecolor=INK if explained else UNSEEN,
        linewidth=1.6 if explained else 0.6, transform=figure.transFigure,
    )  # fmt: skip
    figure.add_artist(box)
    middle = left + word.width / 2
    ink = "white" if not explained and is_dark(colour) else INK
    write_text(figure, word.label, middle, top + BASE, WORD_SIZE, ha="center", va="baseline", color=ink)
    if not explained:
        write_text(figure, form.format(word.relevance), middle, top + BOX + 0.04, NUMBER_SIZE, ha="center", color=FAINT)


def signed_colour(value: float | None, largest: float) -> tuple[float, float, float]:
    """The colour of a relevance: white for 0, the ends of the scale for plus and minus `largest`."""
    from matplotlib import colormaps

    share = 0.0 if value is None or not largest else value / largest
    red, green, blue, _ = colormaps[SIGNED](0.5 + 0.45 * share)  # the very ends are too dark to read on
    return red, green, blue


def draw_signed_scale(figure: Figure, left: float, top: float, largest: float, word: str) -> None:
    """Draw the colour scale with its two ends, from against the word to for it."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    steps = 41
    label = f"against “{word}” "
    start = left + text_width(label, NUMBER_SIZE) + 0.06
    for step in range(steps):
        figure.add_artist(
            Rectangle(
                ((start + step / steps * SCALE_WIDTH) / width, 1 - (top + SCALE_HEIGHT) / height),
                1.15 * SCALE_WIDTH / steps / width,
                SCALE_HEIGHT / height,
                linewidth=0,
                transform=figure.transFigure,
                facecolor=signed_colour(2 * step / (steps - 1) - 1, 1.0),
            )
        )
    write_text(figure, label, left, top - 0.01, NUMBER_SIZE, color=FAINT)
    end = f" for “{word}”; the ends are ±{largest:.2f} of log odds"
    write_text(figure, end, start + SCALE_WIDTH + 0.04, top - 0.01, NUMBER_SIZE, color=FAINT)
