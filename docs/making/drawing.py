"""What the figures of the site share: font, colours for all kinds of colour vision, and how they are saved."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito 2008: distinguishable with every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")  # so that lines differ without colour too
INK, FAINT = "#222222", "#d0d0d0"


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of the given size in inches, independent of the user's matplotlib style."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "font.family": "DejaVu Sans", "font.size": 10}):
        figure = Figure((width, height), facecolor="white", layout="constrained")
        axes = figure.subplots()
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
