"""One picture of what a pronoun depends on: the lens, raw attention beside it, and the routes measured by swaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.arguments import count_of
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing import Relevance
from regard_lab.seeing.canvas import Box, fill, saved_figure, widest, wrapped, write_text
from regard_lab.seeing.lens_study.known import SWAPS, Routes, known_sentences
from regard_lab.seeing.lenses import explain_contrasts
from regard_lab.seeing.lenses.record import (
    EDGE,
    INSIDE,
    LABEL_SIZE,
    NOTE_SIZE,
    NUMBER_SIZE,
    draw_page,
    draw_row,
    placed,
    row_height,
)
from regard_lab.seeing.palette import FAINT, INK, LINES
from regard_lab.text.cleaning import tidy, tidy_target
from regard_lab.text.pronouns import PronounSentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_WIDTH = 3.2  # inches
BAR_HEIGHT = 0.15
BAR_LINE = 0.24
NOTE = (
    "Lens: each word in turn was replaced by the mean of the words' embeddings; the number below it is by how much "
    "that lowers the log odds. Orange words speak for the pronoun, grey ones for the other two. A word can be needed "
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
        words = ", ".join(f"{word} ({value:+.1f})" for word, value in ranked)
        return f"*{self.lens.word}* rather than {' or '.join(self.lens.others)}: {words}"


def view_pronoun(
    translator: Translator,
    sentence: PronounSentence,
    translation: Translation,
    head: tuple[int, int],
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
    model = translator.model
    tokeniser = translator.tokeniser
    contrasts = [known[0].contrast]
    (lens,) = explain_contrasts(model, tokeniser, contrasts)
    (attention,) = explain_contrasts(model, tokeniser, contrasts, "attention", head=head)
    title = f"{tidy(sentence.source)} → {tidy_target(translation.text)}"
    return PronounView(title, lens, attention)


def draw_pronoun(view: PronounView, path: str | Path, routes: Routes | None = None) -> None:
    """Draw lens, attention and routes into a PNG or SVG.

    Raises:
        ArgumentError: a path that ends in neither .png nor .svg, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.
    """
    with saved_figure(path) as figure:
        draw_view(figure, view, routes)


def draw_view(figure: Figure, view: PronounView, routes: Routes | None) -> None:
    """Set the size of the figure, and draw its parts from above to below."""
    lens = view.lens
    attention = view.attention
    attended = placed(attention.source_words, attention.source_scores)
    shares = {} if routes is None else routes.last
    more = row_height(attended)
    if shares:
        more += 0.55 + BAR_LINE * len(shares)
    odds = f"Why {lens.question}? Log odds {lens.log_odds:.2f} (how sure the model is; 0 means undecided)."
    names = (
        "what the lens finds in the source",
        "what it finds in the German so far, and the pronoun",
    )
    note = wrapped(NOTE, NOTE_SIZE, INSIDE, lines=8)
    top = draw_page(figure, lens, view.title, odds, names, note, more)

    # The note of the attention lens names the head.
    _, _, from_head = attention.note.partition("written, ")
    head = from_head.partition(":")[0].replace(", from 0", " (counted from 0)")
    name = f"where one chosen head of cross-attention looks while “{lens.word}” is written: {head}"
    largest = max(attention.source_scores, default=0.0)
    top = draw_row(figure, name, attended, top, largest, are_shares=True)
    if routes is not None and shares:
        draw_bars(figure, shares, routes.counts[0], top)


def draw_bars(figure: Figure, shares: Mapping[str, float], count: int, top: float) -> None:
    """Draw the mean probability of the pronoun over `count` sentences after each swap as horizontal bars."""
    title = f"probability of the right pronoun if a word is swapped: mean over {count_of(count, 'test sentences')}"
    write_text(figure, title, EDGE, top + 0.08, LABEL_SIZE, color=FAINT, style="italic")
    left = EDGE + widest([SWAPS[swap] for swap in shares], NUMBER_SIZE) + 0.15
    for number, (swap, share) in enumerate(shares.items()):
        bar = Box(left, top + 0.38 + BAR_LINE * number, share * BAR_WIDTH, BAR_HEIGHT)
        write_text(figure, SWAPS[swap], EDGE, bar.top, NUMBER_SIZE)
        fill(figure, bar, LINES[0])
        write_text(figure, f"{share:.2f}", left + bar.width + 0.06, bar.top, NUMBER_SIZE, color=INK)
