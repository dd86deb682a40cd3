"""One picture of one sentence: what its translation looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import ArgumentError
from regard.inspection.canvas import (
    FAINT,
    Box,
    checked_path,
    draw_scale,
    drawable,
    new_figure,
    save,
    wrapped,
    write_text,
)
from regard.inspection.maps import AttentionMaps
from regard.inspection.panels import Panel
from regard.kinds import of_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORDS = 120
EDGE, GAP = 0.35, 0.5  # inches around the picture, and between its panels
SCALE_WIDTH, NARROWEST = 0.75, 7.6  # the scale with its numbers; the footnote's width
TITLE_SIZE, NOTE_SIZE = 13.0, 7.5  # points
NOTE = (
    "Each row shares out a weight of 1 among what it reads; grey was not written yet. Layers and heads count from 0.\n"
    "Sub-words are merged: summed where they are read, averaged where they read. Attention alone is not an\n"
    "explanation: a word can be looked at and not used."
)


def draw_maps(
    maps: AttentionMaps,
    path: str | Path,
    *,
    title: str = "",
    layer: int = -1,
    head: int | None = None,
) -> None:
    """Draw cross-attention large, and the self-attention of encoder and decoder with it, between whole words.

    The colours go from 0 to 1 in every picture. Words are shortened to 18 characters; what is invisible is drawn as
    its escape and what the font lacks as its code point.

    Args:
        maps: merged here if they are not yet.
        path: a PNG; an old one is replaced in one instant.
        title: above all, on at most three lines.
        layer: of each stack, counted from 0, or from the last, -1.
        head: counted from 0; None for the mean over the layer's heads.

    Raises:
        ArgumentError: more than 120 words on a side, a layer or head that does not exist, a path that is no PNG or
            has no folder.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile, torch
    >>> weights = torch.tensor([[[[0.9, 0.1], [0.2, 0.8]]]])
    >>> maps = AttentionMaps(("cat", "<end>"), ("Katze", "<end>"), weights, weights.tril(), weights)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_maps(maps, f"{folder}/cat.png", title="cat → Katze")
    ...     Path(folder, "cat.png").read_bytes()[1:4]
    b'PNG'
    """
    of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look gives")
    path = checked_path(path)
    maps = maps.merged()
    words = max(len(maps.source_words), len(maps.target_words))
    if words > MOST_WORDS:
        raise ArgumentError(
            f"the longer side has {words} words and a picture shows at most {MOST_WORDS}; draw a shorter sentence, or "
            f"read the numbers in maps.cross"
        )
    with new_figure() as figure:
        cell = min(max(2.6 / words, 0.165), 0.3)  # the least that slanted labels of 6.5 points need
        cross = Panel.of(maps, "cross", layer, head, cell)
        arrangements: Sequence[tuple[tuple[Panel, ...], tuple[Panel, ...]]] = [((), ())]
        if len(maps.encoder):  # recurrent translators have no self-attention
            encoder, decoder = (Panel.of(maps, kind, layer, head, cell) for kind in ("encoder", "decoder"))
            arrangements = [((), (encoder, decoder)), ((decoder,), (encoder,)), ((encoder,), (decoder,))]
        page = max((_arranged(cross, under, beside) for under, beside in arrangements), key=lambda page: page.filled)
        page.draw(figure, drawable(title) if title else "")
        save(figure, path)


@dataclass(frozen=True)
class Page:
    """Two columns of panels, of which the first is the cross-attention; all lengths are inches."""

    columns: tuple[tuple[Panel, ...], tuple[Panel, ...]]

    @property
    def width(self) -> float:
        inside = sum(_left(column) + _right(column) + GAP for column in self.columns)
        return max(EDGE + inside + SCALE_WIDTH, NARROWEST)

    @property
    def height(self) -> float:
        return max(_stacked(column) for column in self.columns)

    @property
    def filled(self) -> float:
        """The share of the page that is maps."""
        maps = sum(panel.map_width * panel.map_height for column in self.columns for panel in column)
        return maps / (self.width * self.height)

    def draw(self, figure: Figure, title: str) -> None:
        """Draw title, panels, scale and footnote, and give the figure their size."""
        title = wrapped(title, TITLE_SIZE, self.width - 2 * EDGE)
        top = EDGE + (0.2 + 0.26 * len(title.splitlines()) if title else 0.0)
        figure.set_size_inches(self.width, top + self.height + 0.3 + 0.45 + EDGE)
        write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")
        left = EDGE
        for column in self.columns:
            left += _left(column)
            place = top
            for panel in column:
                panel.draw(figure, left, place)
                place += panel.height + GAP
            left += _right(column) + GAP
        first = (self.columns[1] or self.columns[0])[0]
        draw_scale(figure, Box(left, top + first.above, 0.14, 2.0))
        write_text(figure, NOTE, EDGE, top + self.height + 0.3, NOTE_SIZE, color=FAINT)


def _arranged(cross: Panel, under: tuple[Panel, ...], beside: tuple[Panel, ...]) -> Page:
    """The page on which the cross-attention is as large as the column beside it allows."""
    room = _stacked(beside) - sum(panel.height + GAP for panel in under) - cross.above if beside else math.inf
    largest = min(0.56, max(12 / len(cross.columns), 1.3 * cross.cell))
    cross = cross.sized(min(max(room / len(cross.rows), 1.3 * cross.cell), largest))
    return Page(((cross, *under), beside))


def _left(column: tuple[Panel, ...]) -> float:
    return max((panel.left for panel in column), default=0.0)


def _right(column: tuple[Panel, ...]) -> float:
    return max((panel.right for panel in column), default=0.0)


def _stacked(column: tuple[Panel, ...]) -> float:
    return sum(panel.height for panel in column) + GAP * max(0, len(column) - 1)
