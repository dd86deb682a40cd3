"""Drawing functions that the figures of all lessons share: layout, labelled axes, lines, maps, legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from regard_lab.seeing.canvas import (
    POINT,
    colours,
    ink_on,
    label_columns,
    label_rows,
    label_texts,
    signed_colours,
)
from regard_lab.seeing.palette import FAINT, INK, LINES, MARKS, UNSEEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when a figure is drawn

BELOW = 0.42  # inches that numbers and label of an axis take
FEW_ROWS = 16  # up to this number of rows, labels have full size
LABEL_SIZE = 8.5  # points, of labels that are not squeezed


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the labels of both axes."""
    axes.set_title(title, fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(x, fontsize=9, color=INK, parse_math=False)
    axes.set_ylabel(y, fontsize=9, color=INK, parse_math=False)
    axes.tick_params(labelsize=LABEL_SIZE, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str) -> None:
    """Draw a line with the colour and the marker of its number, so that lines differ without colour too."""
    axes.plot(
        x, y, label=label, color=LINES[number], marker=MARKS[number], markersize=5, linewidth=1.4
    )
    axes.grid(alpha=0.25)


def draw_curves(
    axes: Axes,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    labels: tuple[str, str, str],
    *,
    log: Literal["", "x", "xy"] = "",
    columns: int = 2,
) -> None:
    """Draw lines by their names, the title and the labels of both axes, and a legend below.

    `log` names the logarithmic axes; if x is one of them, it has a tick at each value of `x`.
    """
    for number, (name, y) in enumerate(curves.items()):
        draw_line(axes, x, y, number, name)
    label_axes(axes, *labels)
    if log:
        logarithmic(axes, x)
    if log == "xy":
        axes.set_yscale("log")
        axes.minorticks_off()
    legend_below(axes, columns)


def logarithmic(axes: Axes, ticks: Sequence[float]) -> None:
    """Make the x axis logarithmic, with these ticks alone."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def mark_column(axes: Axes, x: float, text: str) -> None:
    """Draw a dashed vertical line with a text beside it, at the bottom."""
    axes.axvline(x, color=FAINT, linestyle="--", linewidth=1)
    at_bottom = axes.get_xaxis_transform()  # the height is a share of the panel
    axes.text(x * 1.06, 0.03, text, transform=at_bottom, fontsize=LABEL_SIZE, color=FAINT)


def draw_bars(
    axes: Axes,
    bars: Mapping[str, float],
    texts: Sequence[str],
    colours: str | Sequence[str] = LINES[0],
) -> None:
    """Draw horizontal bars by their names, the first above, with a text at the end of each."""
    places = range(len(bars))
    axes.barh(places, list(bars.values()), color=colours, height=0.62)
    for place, value, text in zip(places, bars.values(), texts, strict=True):
        axes.text(value, place, f" {text}", va="center", fontsize=LABEL_SIZE, color=INK)
    axes.set_yticks(places, list(bars), fontsize=LABEL_SIZE)
    axes.set_ylim(len(bars) - 0.5, -0.5)


def draw_cells(
    axes: Axes, values: torch.Tensor, colours: Sequence[str], aspect: Literal["auto", "equal"]
) -> None:
    """Draw whole numbers (rows, columns), each with its colour."""
    from matplotlib.colors import ListedColormap

    axes.imshow(
        values.numpy(),
        cmap=ListedColormap(list(colours)),
        vmin=0,
        vmax=len(colours) - 1,
        aspect=aspect,
        interpolation="nearest",
    )
    axes.set(xticks=[], yticks=[])


def draw_reading(
    axes: Axes,
    title: str,
    words: Sequence[str],
    colours: torch.Tensor,
    reader: int,
    weights: torch.Tensor,
    received: torch.Tensor,
) -> None:
    """Draw words below, what the word at `reader` receives from each head above, and lines as thick as the weights.

    Shapes: `colours` of words (words, 3); `weights` (heads, words); `received`, colours that heads return, (heads, 3).
    """
    from matplotlib.patches import Rectangle

    for place, word in enumerate(words):
        colour = colours[place].tolist()
        box = Rectangle((place - 0.4, 0), 0.8, 0.5, edgecolor=INK, facecolor=colour, linewidth=0.6)
        axes.add_patch(box)
        below = axes.text(place, -0.12, word, ha="center", va="top", fontsize=9.5, color=INK)
        below.set_fontweight("bold" if place == reader else "normal")

    middle = (len(words) - 1) / 2
    for head, weights_of_head in enumerate(weights.tolist()):
        centre = middle + 1.2 * (head - (len(weights) - 1) / 2)
        colour = received[head].clamp(0, 1).tolist()
        corner = (centre - 0.5, 2.3)
        box = Rectangle(corner, 1.0, 0.6, edgecolor=INK, facecolor=colour, linewidth=0.9)
        axes.add_patch(box)
        for place, weight in enumerate(weights_of_head):
            if weight <= 0.01:
                continue
            axes.plot([place, centre], [0.5, 2.3], color=FAINT, linewidth=4 * weight)
            beside_line = 0.65 * place + 0.35 * centre + 0.2
            axes.text(beside_line, 1.13, f"{weight:.1f}", va="center", fontsize=9, color=INK)

    label = f"what “{words[reader]}” receives"
    axes.text(middle, 3.0, label, ha="center", va="bottom", fontsize=9, color=INK)
    axes.set_title(title, fontsize=10, color=INK, parse_math=False)
    axes.set(xlim=(-0.7, len(words) - 0.3), ylim=(-0.55, 3.4))
    axes.set_axis_off()


def legend_below(axes: Axes, columns: int = 2) -> None:
    """Draw a legend below the label of the x axis, at any height of the axes."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    below = axes.transAxes + ScaledTranslation(0, -BELOW, figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=columns,
        fontsize=LABEL_SIZE,
        frameon=False,
    )


def draw_map(
    axes: Axes,
    values: torch.Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    limits: tuple[float, float] = (0.0, 1.0),
    hidden: torch.Tensor | None = None,
    cell: float = 0.3,
    *,
    signed: bool = False,
) -> Any:
    """Draw values (rows, columns) as colours with labels.

    Args:
        axes: to draw on.
        values: numbers, (rows, columns).
        rows, columns: their labels.
        limits: the numbers of the first and the last colour.
        hidden: booleans (rows, columns); these cells are grey.
        cell: the height of a cell in inches.
        signed: a second colour for numbers below 0; white is the middle.
    """
    if hidden is not None:
        values = values.masked_fill(hidden, torch.nan)
    axes.set_facecolor(UNSEEN)
    image = axes.imshow(
        values.numpy(),
        cmap=signed_colours() if signed else colours(),
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
        interpolation="nearest",
    )
    size_for_cells = min(max(cell / POINT * 0.55, 4.5), LABEL_SIZE)
    axes.set(xticks=[], yticks=[])
    if rows:
        size = LABEL_SIZE if len(rows) <= FEW_ROWS else size_for_cells
        label_rows(axes, label_texts(rows), size)
    if columns:
        label_columns(axes, label_texts(columns), size_for_cells)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def write_numbers(axes: Axes, values: torch.Tensor, size: float = LABEL_SIZE) -> None:
    """Write values from 0 to 1 (rows, columns) into the cells of a map, in a legible colour; NaN stays empty."""
    for row, column in (~values.isnan()).nonzero().tolist():
        value = float(values[row, column])
        text = f"{value:.2f}".lstrip("0")
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=ink_on(value))


def scale_beside(figure: Figure, image: Any, axes: Any, label: str) -> None:
    """Draw the colour scale."""
    bar = figure.colorbar(image, ax=axes, shrink=0.75, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=LABEL_SIZE, color=FAINT, labelcolor=FAINT)
    bar.set_label(label, fontsize=LABEL_SIZE, color=FAINT, parse_math=False)
