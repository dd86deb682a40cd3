"""One map of a picture: its title, its labels and its weights, and the room they need in inches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from regard.inspection.canvas import (
    FAINT,
    POINT,
    SLANT,
    Box,
    draw_weights,
    label_columns,
    label_rows,
    label_texts,
    slanted_height,
    text_width,
    unwritten,
    widest,
    write_text,
)
from regard.inspection.maps import AttentionMaps, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Title, what the columns are, what the rows are.
WORDING: dict[Kind, tuple[str, str, str]] = {
    "cross": ("Cross-attention", "source words read", "word written"),
    "encoder": ("Encoder self-attention", "source words read", "word reading"),
    "decoder": ("Decoder self-attention", "written words read", "word written"),
}
TITLE_SIZE, SMALL_SIZE = 10.5, 8.0  # points
HEADING = 0.71  # the three lines above the column labels
SIDE = 0.34  # the axis title beside the row labels
NUMBERED_CELL = 0.32  # the smallest that holds its weight as a number
LEAST_NUMBER = 0.1  # smaller weights stay colour alone


@dataclass(frozen=True)
class Panel:
    """A map of (rows, columns) square cells; `cell` and all that is computed from it are inches."""

    kind: Kind
    subtitle: str
    weights: torch.Tensor
    rows: list[str]
    columns: list[str]
    cell: float

    @classmethod
    def of(cls, maps: AttentionMaps, kind: Kind, layer: int, head: int | None, cell: float) -> Panel:
        """The panel of one head, or of the mean over a layer's heads."""
        rows, columns = maps.labels(kind)
        depth, heads = getattr(maps, kind).shape[:2]
        stack = "encoder" if kind == "encoder" else "decoder"
        last = " (last)" if layer in (-1, depth - 1) else ""
        which = f"mean of {heads} heads" if head is None else f"head {head}"
        subtitle = f"{stack} layer {layer % depth}{last}, {which}"
        return cls(kind, subtitle, maps.matrix(kind, layer, head), label_texts(rows), label_texts(columns), cell)

    def sized(self, cell: float) -> Panel:
        """The same with larger or smaller cells."""
        return replace(self, cell=cell)

    @property
    def label_size(self) -> float:
        """Points."""
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
        """From the map's left edge to the end of whatever reaches farthest: map, slanted labels or title."""
        labels = (
            (place + 0.6) * self.cell + SLANT * (text_width(label, self.label_size) + self.label_size * POINT)
            for place, label in enumerate(self.columns)
        )
        title = text_width(WORDING[self.kind][0], TITLE_SIZE, "bold")
        return max(self.map_width, *labels, title, text_width(self.subtitle, SMALL_SIZE))

    @property
    def height(self) -> float:
        return self.above + max(self.map_height, text_width(f"← {WORDING[self.kind][2]}", SMALL_SIZE))

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw it with the left edge of its map, and the top of its title, at a place of the figure."""
        title, columns, rows = WORDING[self.kind]
        write_text(figure, title, left, top, TITLE_SIZE, weight="bold")
        write_text(figure, self.subtitle, left, top + 0.22, SMALL_SIZE, color=FAINT)
        write_text(figure, f"{columns} →", left, top + 0.43, SMALL_SIZE, color=FAINT, style="italic")
        top += self.above
        write_text(figure, f"← {rows}", left - self.left, top, SMALL_SIZE, color=FAINT, style="italic", rotation=90)
        box = Box(left, top, self.map_width, self.map_height)
        axes = draw_weights(figure, box, self.weights, unwritten(self.kind, self.weights))
        label_rows(axes, self.rows, self.label_size)
        label_columns(axes, self.columns, self.label_size)
        if self.cell >= NUMBERED_CELL:
            self._write_numbers(axes)

    def _write_numbers(self, axes: Axes) -> None:
        size = min(self.cell / POINT * 0.27, SMALL_SIZE)
        for row, line in enumerate(self.weights.tolist()):
            for column, weight in enumerate(line):
                if weight >= LEAST_NUMBER:
                    colour = "white" if weight < 0.55 else "black"
                    shown = f"{weight:.2f}".removeprefix("0")
                    axes.text(column, row, shown, fontsize=size, color=colour, ha="center", va="center")
