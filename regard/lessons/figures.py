"""What the figures of lessons share: the colours of regard's other pictures, labelled axes, legends beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from regard.inspection.canvas import COLOURS, FAINT, INK, POINT, label_columns, label_rows, label_texts
from regard.inspection.quality.report import COLOURS as LINES
from regard.inspection.quality.report import MARKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BELOW = 0.42  # inches that numbers and label of an axis take
FEW = 16  # rows that have room for letters of full size

__all__ = ["LINES", "FAINT", "INK", "begin", "draw_line", "draw_map", "label_axes", "legend_below", "scale_beside"]


def begin(figure: Figure, title: str, width: float, height: float) -> None:
    """A size in inches, a heading, and axes that make room for each other."""
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK, parse_math=False)


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """What is shown, along what, in which unit."""
    axes.set_title(title, fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(x, fontsize=9, color=INK, parse_math=False)
    axes.set_ylabel(y, fontsize=9, color=INK, parse_math=False)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str) -> None:
    """A line with the colour and the mark of its number, so that no meaning hangs on colour alone."""
    axes.plot(x, y, label=label, color=LINES[number], marker=MARKS[number], markersize=5, linewidth=1.4)
    axes.grid(alpha=0.25)


def legend_below(axes: Axes, columns: int = 2) -> None:
    """A legend under the axis' own label, whatever the height of the axes."""
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
    """Values (rows, columns) as colours, words beside and above; cells in `hidden` stay grey; `cell` is in inches."""
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
    """The bar that says which colour is which value."""
    bar = figure.colorbar(image, ax=axes, shrink=0.75, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7.5, color=FAINT, labelcolor=FAINT)
    bar.set_label(label, fontsize=8, color=FAINT, parse_math=False)
