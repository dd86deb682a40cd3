"""Pictures of attention: of one sentence, of all heads of a model side by side, and of the pairs of a pattern."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import count_of, of_kind, shown
from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard.patterns.drawing import drawn_pairs
from regard_lab.seeing.canvas import (
    POINT,
    SLANT,
    Box,
    draw_scale,
    draw_weights,
    drawable,
    ink_on,
    label_columns,
    label_rows,
    label_texts,
    not_allowed,
    saved_figure,
    slanted_height,
    text_width,
    widest,
    wrapped,
    write_text,
)
from regard_lab.seeing.maps import AttentionMaps, Kind
from regard_lab.seeing.palette import FAINT, PAIR_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
# The title, the columns, the rows.
WORDING: dict[Kind, tuple[str, str, str]] = {
    "cross": ("Cross-attention", "source words read", "word written"),
    "encoder": ("Encoder self-attention", "source words read", "word reading"),
    "decoder": ("Decoder self-attention", "written words read", "word written"),
}
PANEL_TITLE_SIZE = 10.5  # points
SMALL_SIZE = 8.0
HEADING = 0.71  # height of the three lines above the column labels
SIDE = 0.34  # width of the axis title beside the row labels
NUMBERED_CELL = 0.32  # the smallest cell with its weight as a number
LEAST_NUMBER = 0.1  # smaller weights have no number


@dataclass(frozen=True)
class WeightsPanel:
    """A map of (rows, columns) square cells; `cell` and all lengths are in inches."""

    wording: tuple[str, str, str]
    subtitle: str
    weights: torch.Tensor
    rows: list[str]
    columns: list[str]
    cell: float
    masked: torch.Tensor

    @classmethod
    def of(
        cls, maps: AttentionMaps, kind: Kind, layer: int, head: int | None, cell: float
    ) -> WeightsPanel:
        """The panel of one head, or of the mean over a layer's heads."""
        rows, columns = maps.labels(kind)
        heads_by_layer = getattr(maps, kind)
        depth, heads = heads_by_layer.shape[:2]
        stack = "encoder" if kind == "encoder" else "decoder"
        last = " (last)" if layer in (-1, depth - 1) else ""
        which = f"mean of {count_of(heads, 'heads')}" if head is None else f"head {head}"
        return cls(
            wording=WORDING[kind],
            subtitle=f"{stack} layer {layer % depth}{last}, {which}",
            weights=maps.matrix(kind, layer, head),
            rows=label_texts(rows),
            columns=label_texts(columns),
            cell=cell,
            masked=not_allowed(heads_by_layer[layer]),
        )

    @property
    def label_size(self) -> float:
        """Size of the labels in points."""
        return min(max(self.cell / POINT * 0.5, 6.5), 10.0)

    @property
    def map_width(self) -> float:
        return len(self.columns) * self.cell

    @property
    def map_height(self) -> float:
        return len(self.rows) * self.cell

    @property
    def left(self) -> float:
        return widest(self.rows, self.label_size) + SIDE

    @property
    def above(self) -> float:
        return HEADING + slanted_height(self.columns, self.label_size)

    @property
    def right(self) -> float:
        """Width from the map's left edge to the right end of map, slanted labels and title."""
        size = self.label_size
        widths = [self.map_width]
        for place, label in enumerate(self.columns):
            slanted = SLANT * (text_width(label, size) + size * POINT)
            widths.append((place + 0.6) * self.cell + slanted)
        widths.append(text_width(self.wording[0], PANEL_TITLE_SIZE, "bold"))
        widths.append(text_width(self.subtitle, SMALL_SIZE))
        return max(widths)

    @property
    def height(self) -> float:
        return self.above + max(self.map_height, text_width(f"← {self.wording[2]}", SMALL_SIZE))

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the panel, given the left edge of its map and the top of its title."""
        title, columns, rows = self.wording
        faint = {"color": FAINT, "style": "italic"}
        write_text(figure, title, left, top, PANEL_TITLE_SIZE, weight="bold")
        write_text(figure, self.subtitle, left, top + 0.22, SMALL_SIZE, color=FAINT)
        write_text(figure, f"{columns} →", left, top + 0.43, SMALL_SIZE, **faint)
        top += self.above
        write_text(figure, f"← {rows}", left - self.left, top, SMALL_SIZE, rotation=90, **faint)

        box = Box(left, top, self.map_width, self.map_height)
        axes = draw_weights(figure, box, self.weights, self.masked)
        label_rows(axes, self.rows, self.label_size)
        label_columns(axes, self.columns, self.label_size)
        if self.cell >= NUMBERED_CELL:
            self._write_numbers(axes)

    def _write_numbers(self, axes: Axes) -> None:
        """Write the larger weights into their cells, as in ".25"."""
        style: dict[str, Any] = {"ha": "center", "va": "center"}
        style["fontsize"] = min(self.cell / POINT * 0.27, SMALL_SIZE)
        for row, column in (self.weights >= LEAST_NUMBER).nonzero().tolist():
            weight = float(self.weights[row, column])
            number = f"{weight:.2f}".removeprefix("0")
            axes.text(column, row, number, color=ink_on(weight), **style)


MOST_WORDS = 120
EDGE = 0.35  # inches around the picture
GAP = 0.5  # inches between its panels
SCALE_WIDTH = 0.75  # of the scale with its numbers
NARROWEST = 7.6  # the footnote's width
TITLE_SIZE = 13.0  # points
NOTE_SIZE = 7.5
NOTE = (
    "The weights of each row sum to 1. Grey pairs are not allowed: outside the window of this model's layer, or not\n"
    "written yet. A word reads itself where it has several sub-words: the later ones read the earlier. Sub-words are\n"
    "merged: the sum over sub-words that are read, the mean over sub-words that read. Layers and heads count from 0.\n"
    "Attention alone is not an explanation: a model can look at a word without using it."
)


def draw_maps(
    maps: AttentionMaps,
    path: str | Path,
    *,
    title: str = "",
    layer: int = -1,
    head: int | None = None,
    heads: Mapping[Kind, tuple[int, int | None]] | None = None,
) -> None:
    """Draw the cross-attention and the self-attention of encoder and decoder between whole words.

    The colours go from 0 to 1 in every picture. Words are shortened to 18 characters; invisible characters are drawn
    as escapes, and characters that the font lacks as code points.

    Args:
        maps: the weights; sub-words are merged if they are not yet.
        path: a PNG or SVG; an existing file is replaced atomically.
        title: at most three lines above the panels.
        layer: of each stack, counted from 0; -1 is the last.
        head: counted from 0; None for the mean over the layer's heads.
        heads: layer and head of the panels that show another one, by "cross", "encoder" or "decoder": a head that was
            chosen in one kind of attention means nothing in another.

    Raises:
        ArgumentError: more than 120 words on a side, a layer, head or panel that does not exist, a path that ends in
            neither .png nor .svg, or a folder that does not exist.
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
    maps = of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look returns").merged()
    words = max(len(maps.source_words), len(maps.target_words))
    if words > MOST_WORDS:
        raise ArgumentError(
            f"the longer side has {words} words and a picture shows at most {MOST_WORDS}; draw a shorter sentence, or "
            f"use the numbers in maps.cross"
        )
    heads = {} if heads is None else heads
    unknown = set(heads) - set(WORDING)
    if unknown:
        raise ArgumentError(
            f"heads names {shown(min(unknown, key=str))}; the panels are {', '.join(WORDING)}"
        )

    with saved_figure(path) as figure:
        page = _fullest_page(maps, {**dict.fromkeys(WORDING, (layer, head)), **heads})
        page.draw(figure, drawable(title) if title else "")


def _fullest_page(maps: AttentionMaps, heads: Mapping[Kind, tuple[int, int | None]]) -> PicturePage:
    """The page of whole-word maps whose arrangement leaves the least paper empty."""
    words = max(len(maps.source_words), len(maps.target_words))
    cell = min(max(2.6 / words, 0.165), 0.3)  # the least that slanted labels of 6.5 points need
    cross = WeightsPanel.of(maps, "cross", *heads["cross"], cell)
    if not len(maps.encoder):  # recurrent translators have no self-attention
        return _arranged(cross, (), ())

    encoder = WeightsPanel.of(maps, "encoder", *heads["encoder"], cell)
    decoder = WeightsPanel.of(maps, "decoder", *heads["decoder"], cell)
    pages = [
        _arranged(cross, (), (encoder, decoder)),
        _arranged(cross, (decoder,), (encoder,)),
        _arranged(cross, (encoder,), (decoder,)),
    ]
    return max(pages, key=lambda page: page.filled)


@dataclass(frozen=True)
class PicturePage:
    """Two columns of panels, the first with the cross-attention; all lengths are in inches."""

    columns: tuple[tuple[WeightsPanel, ...], tuple[WeightsPanel, ...]]
    note: str = NOTE

    @property
    def width(self) -> float:
        inside = sum(_left(column) + _right(column) + GAP for column in self.columns if column)
        return max(EDGE + inside + SCALE_WIDTH, NARROWEST)

    @property
    def height(self) -> float:
        return max(_stacked(column) for column in self.columns)

    @property
    def filled(self) -> float:
        """The share of the page that maps cover."""
        area = 0.0
        for column in self.columns:
            for panel in column:
                area += panel.map_width * panel.map_height
        return area / (self.width * self.height)

    def draw(self, figure: Figure, title: str) -> None:
        """Draw title, panels, scale and footnote, and set the size of the figure."""
        title = wrapped(title, TITLE_SIZE, self.width - 2 * EDGE)
        top = EDGE + (0.2 + 0.26 * len(title.splitlines()) if title else 0.0)
        figure.set_size_inches(self.width, top + self.height + 0.3 + 0.45 + EDGE)
        write_text(figure, title, EDGE, EDGE, TITLE_SIZE, weight="bold")

        left = EDGE
        for column in filter(None, self.columns):
            left += _left(column)
            panel_top = top
            for panel in column:
                panel.draw(figure, left, panel_top)
                panel_top += panel.height + GAP
            left += _right(column) + GAP

        last_column = self.columns[1] or self.columns[0]
        draw_scale(figure, Box(left, top + last_column[0].above, 0.14, 2.0))
        write_text(figure, self.note, EDGE, top + self.height + 0.3, NOTE_SIZE, color=FAINT)


def _arranged(
    cross: WeightsPanel, under: tuple[WeightsPanel, ...], beside: tuple[WeightsPanel, ...]
) -> PicturePage:
    """The page with the cross-attention as large as the second column allows."""
    room = math.inf
    if beside:
        room = _stacked(beside) - sum(panel.height + GAP for panel in under) - cross.above
    smallest = 1.3 * cross.cell
    largest = min(0.56, max(12 / len(cross.columns), smallest))
    cell = min(max(room / len(cross.rows), smallest), largest)
    return PicturePage(((replace(cross, cell=cell), *under), beside))


def _left(column: tuple[WeightsPanel, ...]) -> float:
    return max((panel.left for panel in column), default=0.0)


def _right(column: tuple[WeightsPanel, ...]) -> float:
    return max((panel.right for panel in column), default=0.0)


def _stacked(column: tuple[WeightsPanel, ...]) -> float:
    return sum(panel.height for panel in column) + GAP * max(0, len(column) - 1)


GRID_GAP = 0.16  # inches between the maps of all heads
WIDEST = 24.0  # the most inches for all heads of a layer with labels
NAMED_CELL = 0.1  # the smallest cell with a label
SMALLEST_CELL = 0.05
SCALE_HEIGHT = 1.5
LEAST_STEP = 0.6  # the width of "layer 12"
GRID_HEADING = 0.85  # the height of title, subtitle and head numbers


@dataclass(frozen=True)
class _HeadGrid:
    """Where the maps of all heads stand: a row for each layer, a column for each head; all lengths are in inches."""

    rows: list[str]
    columns: list[str]
    layers: int
    heads: int

    @property
    def cell(self) -> float:
        width = max(WIDEST / (self.heads * len(self.columns)), SMALLEST_CELL)
        return min(width, 0.2, 3.0 / min(len(self.columns), 15))

    @property
    def is_named(self) -> bool:
        """Whether rows and columns have labels."""
        return self.cell >= NAMED_CELL

    @property
    def label_size(self) -> float:
        """Size of the labels in points."""
        return min(max(self.cell / POINT * 0.55, 5.0), 8.0)

    @property
    def map_width(self) -> float:
        return len(self.columns) * self.cell

    @property
    def map_height(self) -> float:
        return len(self.rows) * self.cell

    @property
    def across(self) -> float:
        """From the left edge of a map to that of the next."""
        return max(self.map_width, LEAST_STEP) + GRID_GAP

    @property
    def down(self) -> float:
        """From the upper edge of a map to that of the one below."""
        return max(self.map_height, LEAST_STEP) + GRID_GAP

    @property
    def left(self) -> float:
        return EDGE + 0.3 + (widest(self.rows, self.label_size) if self.is_named else 0.0)

    @property
    def top(self) -> float:
        labels = slanted_height(self.columns, self.label_size) if self.is_named else 0.0
        return EDGE + GRID_HEADING + labels

    @property
    def scale_left(self) -> float:
        """The left edge of the colour scale, behind the slanted labels of the last columns."""
        labels = widest(self.columns[-3:], self.label_size) if self.is_named else 0.0
        return self.left + self.heads * self.across + max(0.2, labels)

    @property
    def height(self) -> float:
        return self.top + max(self.layers * self.down, SCALE_HEIGHT) + EDGE

    def box(self, layer: int, head: int) -> Box:
        left = self.left + head * self.across
        return Box(left, self.top + layer * self.down, self.map_width, self.map_height)


def draw_heads(maps: AttentionMaps, path: str | Path, kind: Kind = "encoder") -> None:
    """Draw all heads of one kind of attention: a row for each layer, a column for each head, one scale from 0 to 1.

    If there are too many heads and words for labels, a note in the picture states it.

    Args:
        maps: the weights; sub-words are merged if they are not yet.
        path: a PNG or SVG; an existing file is replaced atomically.
        kind: "encoder", "decoder" or "cross".

    Raises:
        ArgumentError: another kind, a path that ends in neither .png nor .svg, or a folder that does not exist.
        CheckpointError: the file could not be written.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile, torch
    >>> weights = torch.full((2, 2, 3, 3), 1 / 3)
    >>> maps = AttentionMaps(("the", "cat", "<end>"), ("die", "Katze", "<end>"), weights, weights.tril(), weights)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_heads(maps, f"{folder}/heads.png", "cross")
    ...     Path(folder, "heads.png").read_bytes()[1:4]
    b'PNG'
    """
    maps = of_kind("maps", maps, AttentionMaps, "the AttentionMaps that look returns").merged()
    rows, columns = maps.labels(kind)
    weights = getattr(maps, kind)
    layers, heads = weights.shape[:2]
    grid = _HeadGrid(label_texts(rows), label_texts(columns), layers, heads)
    title, read, reading = WORDING[kind]
    unnamed = f"; {len(rows)} × {count_of(len(columns), 'words')} in order, too small to be named"
    subtitle = (
        f"{read} →, {reading} ↓{'' if grid.is_named else unnamed}. Grey: not allowed (window, or not written yet). "
        f"Layers and heads count from 0; attention alone is no explanation."
    )

    with saved_figure(path) as figure:
        width = max(grid.scale_left + 0.75, text_width(subtitle, 8) + 2 * EDGE)
        figure.set_size_inches(width, grid.height)
        write_text(figure, f"{title}, every head", EDGE, EDGE, 13, weight="bold")
        write_text(figure, subtitle, EDGE, EDGE + 0.27, 8, color=FAINT)
        for layer in range(layers):
            middle = grid.top + layer * grid.down + grid.map_height / 2
            style = {"weight": "bold", "rotation": 90, "va": "center"}
            write_text(figure, f"layer {layer}", EDGE, middle, 9, **style)
            masked = not_allowed(weights[layer])
            for head in range(heads):
                box = grid.box(layer, head)
                axes = draw_weights(figure, box, maps.matrix(kind, layer, head), masked)
                if layer == 0:
                    write_text(figure, f"head {head}", box.left, EDGE + 0.6, 9, weight="bold")
                if grid.is_named and layer == 0:
                    label_columns(axes, grid.columns, grid.label_size)
                if grid.is_named and head == 0:
                    label_rows(axes, grid.rows, grid.label_size)
        draw_scale(figure, Box(grid.scale_left, grid.top, 0.14, SCALE_HEIGHT))


LARGEST = 4096  # the most queries or keys
PATTERN_WIDTH = 5.0  # inches
CHARACTERS = 64  # in a line of the title
PANELS_IN_ROW = 4  # heads that differ
MOST_PANELS = 32


def draw_pattern(
    pattern: Pattern,
    q_len: int,
    k_len: int,
    path: str | Path,
    *,
    q_start: int | None = None,
    layers: int = 1,
) -> None:
    """Draw the allowed pairs of a pattern (dark) into a PNG or SVG, those of the first batch row if they differ.

    Heads that differ are drawn side by side. For a stack of several layers, positions that a query depends on only
    through other positions are drawn lighter.

    Args:
        pattern: the pattern to draw.
        q_len, k_len: numbers of queries and keys.
        path: a PNG or SVG; an existing file is replaced atomically.
        q_start: position of the first query; by default the last query is aligned with the last key.
        layers: number of layers of the stack.

    Raises:
        ArgumentError: sizes below 1 or above 4096, more than 32 heads that differ, a path that ends in
            neither .png nor .svg, or a folder that does not exist.
        MissingPackageError: matplotlib is not installed.

    >>> import tempfile
    >>> from regard.patterns import Causal
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_pattern(Causal(), 8, 8, f"{folder}/causal.png")
    ...     Path(folder, "causal.png").read_bytes()[1:4]
    b'PNG'
    """
    if not (1 <= q_len <= LARGEST and 1 <= k_len <= LARGEST):
        raise ArgumentError(
            f"{q_len} x {k_len} pairs do not fit a picture; draw 1 to {LARGEST} each way"
        )
    panels, title = drawn_pairs(pattern, q_len, k_len, q_start=q_start, layers=layers)
    if len(panels) > MOST_PANELS:
        raise ArgumentError(
            f"{len(panels)} heads differ in {pattern}; a picture draws at most {MOST_PANELS}"
        )

    across = min(len(panels), PANELS_IN_ROW)
    down = -(-len(panels) // across)
    height = max(1.6, min(2 * PATTERN_WIDTH, PATTERN_WIDTH * q_len / k_len)) + 0.4
    first = k_len - q_len if q_start is None else q_start
    extent = (-0.5, k_len - 0.5, first + q_len - 0.5, first - 0.5)
    lines = [
        *wrap(drawable(str(pattern)), CHARACTERS * across),
        *wrap(title, CHARACTERS * across),
    ]
    with saved_figure(path) as figure:
        from matplotlib.colors import ListedColormap

        colours = ListedColormap(list(PAIR_COLOURS))
        scale: dict[str, Any] = {"cmap": colours, "vmin": 0, "vmax": 2}
        figure.set_size_inches(PATTERN_WIDTH * across, height * down)
        for number, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(down, across, number)
            marks = panel.marks.numpy()
            axes.imshow(marks, extent=extent, interpolation="nearest", **scale)
            heading = lines if len(panels) == 1 else wrap(drawable(panel.title), CHARACTERS)
            axes.set_title("\n".join(heading), fontsize=9, parse_math=False)
            axes.set_xlabel("position of the key")
            axes.set_ylabel("position of the query")
            axes.locator_params(integer=True)
            axes.spines[:].set_visible(False)
        if len(panels) > 1:
            figure.suptitle("\n".join(lines), fontsize=9, parse_math=False)
        figure.set_layout_engine("constrained" if len(panels) > 1 else "tight")
