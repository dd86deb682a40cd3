"""Draws a pattern as a picture, with queries as rows and keys as columns."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard.patterns.drawing import drawn_pairs
from regard_lab.seeing.canvas import checked_path, drawable, new_figure, save

LARGEST = 4096  # the most queries or keys
INCHES = 5.0
CHARACTERS = 64  # in a line of the title
ACROSS, MOST_PANELS = 4, 32  # heads that differ: in a row of the picture, and in all
HIDDEN, LEARNED, ALLOWED = "#e9edf3", "#a3bfdb", "#12355b"


def draw_pattern(
    pattern: Pattern, q_len: int, k_len: int, path: str | Path, *, q_start: int | None = None, layers: int = 1
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
    path = checked_path(path)
    if not (1 <= q_len <= LARGEST and 1 <= k_len <= LARGEST):
        raise ArgumentError(f"{q_len} x {k_len} pairs do not fit a picture; draw 1 to {LARGEST} each way")
    panels, title = drawn_pairs(pattern, q_len, k_len, q_start=q_start, layers=layers)
    if len(panels) > MOST_PANELS:
        raise ArgumentError(f"{len(panels)} heads differ in {pattern}; a picture draws at most {MOST_PANELS}")
    first = k_len - q_len if q_start is None else q_start
    height = max(1.6, min(2 * INCHES, INCHES * q_len / k_len)) + 0.4
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    with new_figure() as figure:
        from matplotlib.colors import ListedColormap

        colours = ListedColormap([HIDDEN, LEARNED, ALLOWED])
        figure.set_size_inches(INCHES * across, height * down)
        lines = [*wrap(drawable(str(pattern)), CHARACTERS * across), *wrap(title, CHARACTERS * across)]
        for number, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(down, across, number)
            extent = (-0.5, k_len - 0.5, first + q_len - 0.5, first - 0.5)
            axes.imshow(panel.marks.numpy(), cmap=colours, vmin=0, vmax=2, extent=extent, interpolation="nearest")
            own = lines if len(panels) == 1 else wrap(drawable(panel.title), CHARACTERS)
            axes.set_title("\n".join(own), fontsize=9, parse_math=False)
            axes.set_xlabel("position of the key")
            axes.set_ylabel("position of the query")
            axes.locator_params(integer=True)
            axes.spines[:].set_visible(False)
        if len(panels) > 1:
            figure.suptitle("\n".join(lines), fontsize=9, parse_math=False)
        figure.set_layout_engine("constrained" if len(panels) > 1 else "tight")
        save(figure, path)
