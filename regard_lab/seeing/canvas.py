"""Drawing functions that all pictures of weights share: font, colour scale, safe labels, saving.

Sizes and positions are in inches from the upper left corner of the picture.
"""

from __future__ import annotations

import os
import textwrap
import warnings
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
from regard.packages import needed
from regard.storage.files import replace_file
from regard_lab.seeing.palette import AGAINST, DEPENDS, EDGES, FAINT, INK, OPPOSES, SCALE, UNSEEN
from regard_lab.seeing.terminal import shortened, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Included in matplotlib, so that a picture is the same on every machine.
FONT = "DejaVu Sans"
# Fonts whose glyphs are not those of the code points.
NO_TEXT = ("Last Resort", "cm", "STIXNon", "STIXSize")
KINDS_OF_PICTURE = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150
LARGEST_SIDE = 9000  # dots; larger pictures have fewer dots per inch
POINT = 1 / 72  # inches
SLANT = 0.7072  # cosine and sine of 45 degrees


@dataclass(frozen=True)
class Box:
    """A rectangle given by its left and upper edge and its size."""

    left: float
    top: float
    width: float
    height: float


@contextmanager
def new_figure() -> Generator[Figure]:
    """An empty picture, independent of the user's matplotlib style.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with needed("matplotlib", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "font.family": FONT}):
        yield Figure(facecolor="white")


@cache
def colours() -> Any:
    """The colour scale of every picture of weights: 0 is the colour of the background."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", list(SCALE))


def signed_colours() -> Any:
    """The colour scale of numbers with signs: 0 is the colour of the background."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard signed", [*reversed(AGAINST), *SCALE[1:]])


@cache
def dependence_colours() -> Any:
    """The colour scale of the explorer: orange is what a word depends on, grey what goes against it."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = [*reversed(OPPOSES), *DEPENDS[1:]]
    return LinearSegmentedColormap.from_list("regard dependence", stops)


def is_dark(colour: Sequence[float]) -> bool:
    """Whether white is easier to read on a colour (red, green, blue from 0 to 1) than black: WCAG's luminance."""
    red, green, blue = (_linear(part) for part in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179


def _linear(part: float) -> float:
    """A part of an sRGB colour without its gamma curve."""
    if part <= 0.04045:
        return part / 12.92
    return ((part + 0.055) / 1.055) ** 2.4


def ink_on(weight: float) -> str:
    """The colour of a number that is written on the colour of a weight."""
    return "white" if is_dark(colours()(weight)) else "black"


# What each format writes about the time and the program; left out, so that equal pictures have equal bytes.
_VARYING_METADATA = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}


def save(figure: Figure, path: Path) -> None:
    """Write the picture atomically, as PNG, SVG or PDF by its name; the same picture always gives the same bytes.

    An SVG contains its letters as outlines, and a PDF its fonts, so that they look the same without the font.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        fonts = _fonts_of(text.get_text())
        if len(fonts) > 1:
            text.set_fontfamily(fonts)

    width, height = figure.get_size_inches()
    dots = min(DOTS_PER_INCH, LARGEST_SIDE / max(width, height))
    kind = path.suffix.lower().removeprefix(".")
    metadata = dict.fromkeys(_VARYING_METADATA[kind])
    picture = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(picture, format=kind, dpi=dots, metadata=metadata)
    replace_file(path, picture.getvalue())


def checked_path(path: str | Path) -> Path:
    """The absolute path of a PNG, SVG or PDF to be written."""
    path = Path(os.path.abspath(a_path("path", path)))
    if path.suffix.lower() not in KINDS_OF_PICTURE:
        raise ArgumentError(
            f"the picture is {path.name}; pictures are PNG, SVG or PDF, so its name must end in .png, .svg or .pdf"
        )
    if not path.parent.is_dir():
        raise ArgumentError(
            f"the folder of the picture, {path.parent}, does not exist; create it first"
        )
    return path


@contextmanager
def saved_figure(path: str | Path) -> Generator[Figure]:
    """An empty picture for a checked path, where it is saved at the end of the block."""
    path = checked_path(path)
    with new_figure() as figure:
        yield figure
        save(figure, path)


def drawable(text: str) -> str:
    r"""The text as installed fonts can draw it: invisible characters escaped, missing glyphs as code points.

    Letters that DejaVu Sans lacks are drawn in another installed font; a warning names those that none has.

    >>> drawable("a\u202e $x^2$")
    'a\\u202e $x^2$'
    """
    shown = visible(text)
    missing = sorted({letter for letter in shown if _font_of(letter) is None})
    if not missing:
        return shown

    warnings.warn(
        f"no installed font has {' '.join(missing)}, so code points are drawn; install a font of that script, such "
        f"as one of Noto Sans",
        MissingFontWarning,
        stacklevel=3,
    )
    return "".join(f"[U+{ord(letter):04X}]" if letter in missing else letter for letter in shown)


class MissingFontWarning(UserWarning):
    """Letters of a picture are in no installed font."""


def label_texts(words: Sequence[str]) -> list[str]:
    """Words as labels of rows and columns."""
    return [shortened(drawable(word)) for word in words]


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line in inches, at a size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    if not text:
        return 0.0
    font = FontProperties(family=_fonts_of(text), size=size, weight=weight)
    points, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return points * POINT


def widest(texts: Sequence[str], size: float) -> float:
    """Width of the longest of several lines in inches."""
    return max((text_width(text, size) for text in texts), default=0.0)


LEAST_LETTERS = 8  # in a line of a wrapped text, however narrow the picture is


def wrapped(text: str, size: float, width: float, lines: int = 3) -> str:
    """A bold text wrapped to `width` inches and cut after `lines` lines, then ending in "…"."""
    letter_width = text_width(text, size, "bold") / max(len(text), 1)
    if not letter_width:
        return textwrap.fill(text, LEAST_LETTERS, max_lines=lines, placeholder=" …")
    letters = max(int(0.95 * width / letter_width), LEAST_LETTERS)
    return textwrap.fill(text, letters, max_lines=lines, placeholder=" …")


def write_text(
    figure: Figure, text: str, left: float, top: float, size: float, **style: Any
) -> None:
    """Draw a text at its upper left corner, without interpreting mathematics."""
    width, height = figure.get_size_inches()
    style = {"color": INK, "ha": "left", "va": "top", "linespacing": 1.4, **style}
    figure.text(left / width, 1 - top / height, text, fontsize=size, parse_math=False, **style)


def fill(
    figure: Figure, box: Box, colour: str | Sequence[float], edge: str = "none", line: float = 0
) -> None:
    """Fill a rectangle with a colour, and draw its edge with a line of so many points."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    rectangle = Rectangle(
        (box.left / width, 1 - (box.top + box.height) / height),
        box.width / width,
        box.height / height,
        facecolor=colour,
        edgecolor=edge,
        linewidth=line,
        transform=figure.transFigure,
    )
    figure.add_artist(rectangle)


def draw_weights(
    figure: Figure, box: Box, weights: torch.Tensor, hidden: torch.Tensor | None = None
) -> Axes:
    """Draw weights (rows, columns) as colours from 0 to 1; cells in `hidden` are grey."""
    values = weights if hidden is None else weights.masked_fill(hidden, torch.nan)
    rows, columns = weights.shape

    axes = axes_in(figure, box)
    axes.set_facecolor(UNSEEN)  # shows through where a value is NaN
    axes.imshow(
        values.numpy(), cmap=colours(), vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.set_xticks([place - 0.5 for place in range(1, columns)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, rows)], minor=True)
    axes.grid(which="minor", color=EDGES, linewidth=0.5)
    axes.tick_params(which="both", length=0, pad=3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def label_rows(axes: Axes, labels: Sequence[str], size: float) -> None:
    """Draw row labels on the left."""
    axes.set_yticks(range(len(labels)), labels=labels, fontsize=size, color=INK, parse_math=False)


def label_columns(axes: Axes, labels: Sequence[str], size: float) -> None:
    """Draw column labels above, slanted so that they do not overlap."""
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", which="both", length=0)
    places = range(len(labels))
    ticks = axes.set_xticks(places, labels=labels, fontsize=size, color=INK, parse_math=False)
    for tick in ticks:
        tick.label2.set(rotation=45, ha="left", va="bottom", rotation_mode="anchor")


def slanted_height(labels: Sequence[str], size: float) -> float:
    """Height of the column labels above a map in inches."""
    return SLANT * (widest(labels, size) + size * POINT)


def not_allowed(heads: torch.Tensor) -> torch.Tensor:
    """The pairs, (rows, columns), to which no head of a layer, (heads, rows, columns), gives any weight.

    These are the pairs that the pattern masks: keys outside a window, or not written yet. A softmax gives every allowed
    pair some weight.
    """
    return (heads == 0).all(0)


def draw_scale(figure: Figure, box: Box) -> None:
    """Draw the colour scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    weights = ScalarMappable(Normalize(0, 1), colours())
    bar = figure.colorbar(weights, cax=axes_in(figure, box))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=7.5, color=FAINT, labelcolor=FAINT)
    bar.set_label("attention weight", fontsize=7.5, color=FAINT)


def axes_in(figure: Figure, box: Box) -> Axes:
    """Axes that fill a box."""
    width, height = figure.get_size_inches()
    left = box.left / width
    bottom = (height - box.top - box.height) / height
    return figure.add_axes((left, bottom, box.width / width, box.height / height))


@cache
def _glyphs(path: str) -> frozenset[int]:
    with needed("matplotlib", "a picture"):
        from matplotlib.ft2font import FT2Font
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # a file that is no font
        return frozenset()


@cache
def _font_of(letter: str) -> str | None:
    """The name of an installed font that has a letter: DejaVu Sans, or the first by name; None if no font has it."""
    with needed("matplotlib", "a picture"):
        from matplotlib.font_manager import findfont, fontManager

    code_point = ord(letter)
    if code_point in _glyphs(findfont(FONT)):
        return FONT

    installed = [
        (font.name, font.fname) for font in fontManager.ttflist if not font.name.startswith(NO_TEXT)
    ]
    for name, path in sorted(installed):
        if code_point in _glyphs(path):
            return name
    return None


def _fonts_of(text: str) -> list[str]:
    """The fonts that a text needs, DejaVu Sans first."""
    fonts = {_font_of(letter) for letter in set(text)}
    others = sorted(font for font in fonts if font is not None and font != FONT)
    return [FONT, *others]
