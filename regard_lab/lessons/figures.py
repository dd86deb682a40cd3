"""Drawing functions that the figures of all lessons share: layout, labelled axes, lines, maps, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from regard_lab.seeing.canvas import COLOURS, FAINT, INK, POINT, label_columns, label_rows, label_texts
from regard_lab.seeing.quality.report import COLOURS as LINES
from regard_lab.seeing.quality.report import MARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BELOW = 0.42  # inches that numbers and label of an axis take
FEW = 16  # up to this number of rows, labels have full size

__all__ = ["LINES", "FAINT", "INK", "begin", "draw_line", "draw_map", "label_axes", "legend_below", "scale_beside"]


def begin(figure: Figure, title: str, width: float, height: float) -> None:
    """Set the size in inches, the title, and a layout in which axes do not overlap."""
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK, parse_math=False)


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the labels of both axes."""
    axes.set_title(title, fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(x, fontsize=9, color=INK, parse_math=False)
    axes.set_ylabel(y, fontsize=9, color=INK, parse_math=False)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str) -> None:
    """Draw a line with the colour and the marker of its number, so that lines differ without colour too."""
    axes.plot(x, y, label=label, color=LINES[number], marker=MARKS[number], markersize=5, linewidth=1.4)
    axes.grid(alpha=0.25)


def legend_below(axes: Axes, columns: int = 2) -> None:
    """Draw a legend below the label of the x axis, at any height of the axes."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    below = axes.transAxes + ScaledTranslation(0, -BELOW, figure.dpi_scale_trans)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=columns, fontsize=8, frameon=False
    )


def draw_map(
    axes: Axes,
    values: torch.Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    limits: tuple[float, float] = (0.0, 1.0),
    hidden: torch.Tensor | None = None,
    cell: float = 0.3,
) -> Any:
    """Draw values (rows, columns) as colours with labels; cells in `hidden` are grey; `cell` is in inches."""
    axes.set_facecolor("#e4e4e4")
    shown = values if hidden is None else values.masked_fill(hidden, torch.nan)
    image = axes.imshow(shown.numpy(), cmap=COLOURS, vmin=limits[0], vmax=limits[1], aspect="auto",
                        interpolation="nearest")  # fmt: skip
    size = min(max(cell / POINT * 0.55, 4.5), 8.0)
    axes.set_xticks([])
    axes.set_yticks([])
    if rows:
        label_rows(axes, label_texts(rows), 8.0 if len(rows) <= FEW else size)
    if columns:
        label_columns(axes, label_texts(columns), size)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def scale_beside(figure: Figure, image: Any, axes: Any, label: str) -> None:
    """Draw the colour scale."""
    bar = figure.colorbar(image, ax=axes, shrink=0.75, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7.5, color=FAINT, labelcolor=FAINT)
    bar.set_label(label, fontsize=8, color=FAINT, parse_math=False)
