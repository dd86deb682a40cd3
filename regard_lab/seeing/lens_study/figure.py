"""One picture of what a pronoun depends on: the lens, raw attention beside it, and the routes measured by swaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.arguments import count_of
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing import Relevance
from regard_lab.seeing.canvas import FAINT, INK, LINES, checked_path, new_figure, save, text_width, wrapped, write_text
from regard_lab.seeing.lens_study.known import SWAPS, Routes, known_sentences
from regard_lab.seeing.lenses import explain
from regard_lab.seeing.lenses.record import (
    EDGE,
    LABEL_SIZE,
    NOTE_SIZE,
    NUMBER_SIZE,
    TITLE_SIZE,
    WIDTH,
    draw_row,
    draw_signed_scale,
    placed,
    row_height,
)
from regard_lab.text import tidy, tidy_target
from regard_lab.text.pronouns import PronounSentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_WIDTH, BAR_HEIGHT, BAR_LINE = 3.2, 0.15, 0.24  # inches
NOTE = (
    "Lens: each word in turn was replaced by the mean of the words' embeddings; the number below it is by how much "
    "that lowers the log odds. Blue words speak for the pronoun, red ones for the other two. A word can be needed "
    "without saying which noun is meant, as “weil” often is, which has no gender; the bars show which words decide. "
    "Attention has no sign: it says where one chosen head looks, not what the model uses; other heads look elsewhere. "
    "The bars are not of this sentence: they are means over test sentences. Only another referent in the English "
    "source, or another adjective, should lower them."
)


@dataclass(frozen=True)
class PronounView:
    """A pronoun explained in two ways.

    Args:
        title: the sentence and its translation.
        lens: the default lens over the source and over what was already written.
        attention: raw cross-attention of one head while the pronoun is written.
    """

    title: str
    lens: Relevance
    attention: Relevance

    def line(self, count: int = 3) -> str:
        """The source words that speak most for the pronoun, in a sentence.

        >>> record = Relevance(
        ...     lens="gradients", word="es", others=("er",), place=0, log_odds=1.0, source_words=("animal", "street"),
        ...     source_scores=(2.0, -1.0), written_words=(), written_scores=(), passes=1)
        >>> PronounView("", record, record).line()
        '*es* rather than er: animal (+2.0), street (-1.0)'
        """
        pairs = zip(self.lens.source_words, self.lens.source_scores, strict=True)
        ranked = sorted(pairs, key=lambda pair: -pair[1])[:count]
        others = " or ".join(self.lens.others)
        return f"*{self.lens.word}* rather than {others}: " + ", ".join(
            f"{word} ({value:+.1f})" for word, value in ranked
        )


def view_pronoun(
    translator: Translator, sentence: PronounSentence, translation: Translation, head: tuple[int, int]
) -> PronounView | None:
    """Explain the pronoun of a translated sentence; None if it is wrong.

    Args:
        translator: a translator with attention.
        sentence, translation: the sentence, and what the translator made of it.
        head: the cross-attention head to show, (layer, head).
    """
    known = known_sentences(translator, [sentence])
    if not known:
        return None
    contrasts = [known[0].contrast]
    (lens,) = explain(translator.model, translator.tokeniser, contrasts)
    (attention,) = explain(translator.model, translator.tokeniser, contrasts, "attention", head=head)
    return PronounView(f"{tidy(sentence.source)} → {tidy_target(translation.text)}", lens, attention)


def draw_pronoun(view: PronounView, path: str | Path, routes: Routes | None = None) -> None:
    """Draw lens, attention and routes into a PNG or SVG.

    Raises:
        ArgumentError: a path that ends in neither .png nor .svg, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.
    """
    path = checked_path(path)
    with new_figure() as figure:
        draw_view(figure, view, routes)
        save(figure, path)


def draw_view(figure: Figure, view: PronounView, routes: Routes | None) -> None:
    """Set the size of the figure, and draw its parts from above to below."""
    width = WIDTH - 2 * EDGE
    lens, attention = view.lens, view.attention
    rows = [
        ("what the lens finds in the source", placed(lens.source_words, lens.source_scores, width)),
        ("what it finds in the German so far, and the pronoun",
         placed((*lens.written_words, lens.word), (*lens.written_scores, None), width)),
    ]  # fmt: skip
    looked = placed(attention.source_words, attention.source_scores, width)
    title, note = wrapped(view.title, TITLE_SIZE, width), wrapped(NOTE, NOTE_SIZE, width, lines=8)
    top = EDGE + 0.24 * len(title.splitlines()) + 0.3
    shares = {} if routes is None else routes.last
    bars = 0.45 + BAR_LINE * len(shares) if shares else 0.0
    height = top + sum(row_height(words) for _, words in rows) + 0.4 + row_height(looked) + bars
    figure.set_size_inches(WIDTH, height + 0.2 + 0.16 * len(note.splitlines()) + EDGE)
    write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")
    odds = f"Why {lens.question}? Log odds {lens.log_odds:.2f} (how sure the model is; 0 means undecided)."
    write_text(figure, odds, EDGE, top - 0.28, LABEL_SIZE, color=FAINT)
    largest = max(map(abs, (*lens.source_scores, *lens.written_scores)), default=0.0)
    for name, words in rows:
        top = draw_row(figure, name, words, top, largest)
    draw_signed_scale(figure, EDGE, top + 0.02, largest, lens.word)
    most = max(attention.source_scores, default=0.0)
    name = f"where one chosen head of cross-attention looks while “{lens.word}” is written: {_head_of(attention)}"
    top = draw_row(figure, name, looked, top + 0.4, most, "{:.2f}")
    if shares:
        draw_bars(figure, shares, 0 if routes is None else routes.counts[0], top)
    write_text(figure, note, EDGE, top + bars + 0.1, NOTE_SIZE, color=FAINT)


def _head_of(attention: Relevance) -> str:
    """The head that a note of the attention lens names."""
    return attention.note.partition("written, ")[2].partition(":")[0].replace(", from 0", " (counted from 0)")


def draw_bars(figure: Figure, shares: Mapping[str, float], count: int, top: float) -> None:
    """Draw the mean probability of the pronoun over `count` sentences after each swap as horizontal bars."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    write_text(
        figure,
        f"probability of the right pronoun if a word is swapped: mean over {count_of(count, 'test sentences')}",
        EDGE,
        top + 0.08,
        LABEL_SIZE,
        color=FAINT,
        style="italic",
    )
    left = EDGE + max(text_width(SWAPS[name], NUMBER_SIZE) for name in shares) + 0.15
    for number, (name, share) in enumerate(shares.items()):
        at = top + 0.38 + BAR_LINE * number
        write_text(figure, SWAPS[name], EDGE, at, NUMBER_SIZE)
        figure.add_artist(
            Rectangle(
                (left / width, 1 - (at + BAR_HEIGHT) / height), share * BAR_WIDTH / width, BAR_HEIGHT / height,
                facecolor=LINES[0], linewidth=0, transform=figure.transFigure,
            )
        )  # fmt: skip
        write_text(figure, f"{share:.2f}", left + share * BAR_WIDTH + 0.06, at, NUMBER_SIZE, color=INK)
