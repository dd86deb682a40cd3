"""What every picture of weights shares: one font, one scale of colours, labels that cannot surprise, one way to save.

Sizes and places are in inches from the upper left corner of the picture.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import a_path
from regard.errors import ArgumentError
from regard.inspection.maps import Kind
from regard.inspection.terminal import shortened, visible
from regard.storage.files import replace_file
from regard.text.packages import needed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # comes with matplotlib, so that a picture is the same on every machine
COLOURS = "cividis"
INK, FAINT, UNSEEN = "#222222", "#666666", "#e4e4e4"
DOTS_PER_INCH = 150
LARGEST_SIDE = 9000  # dots; what is larger is drawn coarser
POINT = 1 / 72  # inches
SLANT = 0.7072  # cosine and sine of 45 degrees


@dataclass(frozen=True)
class Box:
    """A rectangle by its left and upper edge."""

    left: float
    top: float
    width: float
    height: float


@contextmanager
def new_figure() -> Generator[Figure]:
    """An empty picture, whatever style the user has set for others.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with needed("matplotlib", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "font.family": FONT}):
        yield Figure(facecolor="white")


def save(figure: Figure, path: Path) -> None:
    """Write the picture as a PNG, whole or not at all; the same picture is the same bytes.

    Raises:
        CheckpointError: it could not be written.
    """
    width, height = figure.get_size_inches()
    dots = min(DOTS_PER_INCH, LARGEST_SIDE / max(width, height))
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=dots, metadata={"Software": None})
    replace_file(path, picture.getvalue())


def checked_path(path: str | Path) -> Path:
    """Where a PNG can be written.

    Raises:
        ArgumentError: another ending than ".png", or a folder that does not exist.
    """
    path = Path(os.path.abspath(a_path("path", path)))
    if path.suffix.lower() != ".png":
        raise ArgumentError(f"the picture would be {path.name}; it is a PNG, so its name ends in .png")
    if not path.parent.is_dir():
        raise ArgumentError(f"the picture would go into {path.parent}, which is no folder; make it first")
    return path


def drawable(text: str) -> str:
    """The text as the font can draw it: what is invisible escaped, what it lacks as its code point.

    >>> drawable("猫 $x^2$")
    '[U+732B] $x^2$'
    """
    glyphs = _glyphs()
    return "".join(letter if ord(letter) in glyphs else f"[U+{ord(letter):04X}]" for letter in visible(text))


def label_texts(words: Sequence[str]) -> list[str]:
    """Words as labels of rows and columns."""
    return [shortened(drawable(word)) for word in words]


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Inches that a line takes at a size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    if not text:
        return 0.0
    font = FontProperties(family=FONT, size=size, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] * POINT


def widest(texts: Sequence[str], size: float) -> float:
    """Inches of the longest of some lines."""
    return max((text_width(text, size) for text in texts), default=0.0)


def wrapped(text: str, size: float, width: float, lines: int = 3) -> str:
    """A bold text broken into lines that are at most `width` inches; what does not fit in `lines` ends in "…"."""
    letter = text_width(text, size, "bold") / max(len(text), 1)
    letters = max(int(0.95 * width / letter), 8) if letter else 8
    return textwrap.fill(text, letters, max_lines=lines, placeholder=" …")


def write_text(figure: Figure, text: str, left: float, top: float, size: float, **style: Any) -> None:
    """Text whose upper left corner is given; nothing in it is mathematics."""
    width, height = figure.get_size_inches()
    style = {"color": INK, "ha": "left", "va": "top", "linespacing": 1.4, **style}
    figure.text(left / width, 1 - top / height, text, fontsize=size, parse_math=False, **style)


def draw_weights(figure: Figure, box: Box, weights: torch.Tensor, hidden: torch.Tensor | None = None) -> Axes:
    """Weights (rows, columns) as colours from 0 to 1; cells in `hidden` stay grey."""
    values = weights if hidden is None else weights.masked_fill(hidden, torch.nan)
    axes = _axes(figure, box)
    axes.set_facecolor(UNSEEN)  # shows through where a value is NaN
    axes.imshow(values.numpy(), cmap=COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    rows, columns = weights.shape
    axes.set_xticks([place - 0.5 for place in range(1, columns)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", alpha=0.18, linewidth=0.5)
    axes.tick_params(which="both", length=0, pad=3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def label_rows(axes: Axes, labels: Sequence[str], size: float) -> None:
    """Labels on the left."""
    axes.set_yticks(range(len(labels)), labels=labels, fontsize=size, color=INK, parse_math=False)


def label_columns(axes: Axes, labels: Sequence[str], size: float) -> None:
    """Labels above, slanted so that none meets its neighbour."""
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", which="both", length=0)
    texts = axes.set_xticks(range(len(labels)), labels=labels, fontsize=size, color=INK, parse_math=False)
    for tick in texts:
        tick.label2.set(rotation=45, ha="left", va="bottom", rotation_mode="anchor")


def slanted_height(labels: Sequence[str], size: float) -> float:
    """Inches above a map that its column labels take."""
    return SLANT * (widest(labels, size) + size * POINT)


def unwritten(kind: Kind, weights: torch.Tensor) -> torch.Tensor | None:
    """The cells of a decoder's map, (rows, columns), that lie ahead of what was written; None for other kinds."""
    if kind != "decoder":
        return None
    return torch.ones_like(weights, dtype=torch.bool).triu(1) & (weights == 0)


def draw_scale(figure: Figure, box: Box) -> None:
    """The bar that says which colour is which weight."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), COLOURS), cax=_axes(figure, box))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7.5, color=FAINT, labelcolor=FAINT)
    bar.set_label("attention weight", fontsize=7.5, color=FAINT)


def _axes(figure: Figure, box: Box) -> Axes:
    width, height = figure.get_size_inches()
    bottom = height - box.top - box.height
    return figure.add_axes((box.left / width, bottom / height, box.width / width, box.height / height))


@cache
def _glyphs() -> frozenset[int]:
    with needed("matplotlib", "a picture"):
        from matplotlib.font_manager import findfont
        from matplotlib.ft2font import FT2Font
    return frozenset(FT2Font(findfont(FONT)).get_charmap())
