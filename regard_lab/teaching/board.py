"""What a lesson shows: tables, figures and claims. A page collects them; a notebook or a script shows them at once."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from regard.errors import RegardError
from regard_lab.seeing.architecture import DrawnModel
from regard_lab.seeing.canvas import new_figure
from regard_lab.seeing.palette import INK
from regard_lab.teaching.drawings import ModelDrawing
from regard_lab.teaching.estimates import Verdict
from regard_lab.text.writing import aligned, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 14  # a page folds a table with more
SIGNS = {True: "✓", False: "✗ *Does not hold:*", None: "? *Undecided:*"}  # before a claim
VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}


class ClaimError(RegardError, AssertionError):
    """A claim of a lesson came out differently from what the lesson says."""


@dataclass(frozen=True)
class Claim:
    """A sentence that was checked, whether it holds, the figures that show it, and whether the lesson expects it to."""

    sentence: str
    holds: Verdict
    figures: str
    expected: Verdict = True

    def __str__(self) -> str:
        return f"{VERDICTS[self.holds]}: {self.sentence} ({self.figures})"

    def _repr_markdown_(self) -> str:
        claim = f'<span class="claim">{SIGNS[self.holds]} {escaped(self.sentence)}</span>'
        return f'- {claim} <span class="measured">{escaped(self.figures)}</span>'


@dataclass(frozen=True)
class LessonTable:
    """A table of text cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return "\n".join([self.title, "", *aligned([self.columns, *self.rows])])

    def _repr_markdown_(self) -> str:
        lines = markdown_table(self.columns, self.rows, escaped)
        title = escaped(self.title)
        if len(self.rows) <= MOST_ROWS:
            return "\n".join([f"**{title}**", "", *lines])

        summary = f"<summary>{title} ({len(self.rows)} rows)</summary>"
        return "\n".join([f"<details markdown>{summary}", "", *lines, "", "</details>"])


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn figure, its title and its caption."""

    title: str
    caption: str
    figure: Figure

    def __str__(self) -> str:
        return f"[figure] {self.title}. {self.caption}"

    def _repr_svg_(self) -> str:
        """The figure as SVG, with its letters as outlines."""
        import matplotlib

        svg = BytesIO()
        undated = {"Date": None, "Creator": None}
        with matplotlib.rc_context({"svg.hashsalt": "regard"}):
            self.figure.savefig(svg, format="svg", metadata=undated)
        return svg.getvalue().decode()


class Rendered(Protocol):
    """Whatever else a lesson shows and renders itself, such as an exercise."""

    def _repr_markdown_(self) -> str: ...


Shown = str | LessonTable | Claim | Picture | Rendered


@dataclass(frozen=True)
class _RunningPage:
    """The page that is running: what it has shown, and whether its claims may come out differently."""

    shown: list[Shown]
    lenient: bool


_running: _RunningPage | None = None


@contextmanager
def collecting(*, lenient: bool) -> Generator[list[Shown]]:
    """Collect what is shown; with `lenient` a claim that comes out differently is shown instead of raised."""
    global _running
    before = _running
    page = _RunningPage([], lenient)
    _running = page
    try:
        yield page.shown
    finally:
        _running = before


def show(thing: Shown) -> None:
    """Show a table, a claim, a picture or a text."""
    if _running is not None:
        _running.shown.append(thing)
    elif _in_notebook():
        sys.modules["IPython.display"].display(thing)
    else:
        print(thing)


def _in_notebook() -> bool:
    return "IPython.display" in sys.modules and bool(sys.modules["IPython"].get_ipython())


def table(title: str, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> None:
    """Show a table; names of columns and cells are converted to text.

    >>> table("Words", ("word", "letters"), [("cat", 3)])
    Words
    <BLANKLINE>
    word  letters
    cat   3
    """
    rows_of_text = tuple(tuple(map(str, row)) for row in rows)
    show(LessonTable(title, tuple(map(str, columns)), rows_of_text))


@contextmanager
def figure(title: str, width: float, height: float, caption: str) -> Generator[Figure]:
    """Draw a figure inside the block, which is then shown.

    Args:
        title: a few words, above the figure.
        width, height: in inches.
        caption: what to look at, below the figure.
    """
    with new_figure() as drawn:
        drawn.set_size_inches(width, height)
        drawn.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        drawn.suptitle(
            title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, parse_math=False
        )
        yield drawn
        show(Picture(title, caption, drawn))


def model_drawing(architecture: DrawnModel, caption: str) -> None:
    """Show the drawing of a model."""
    show(ModelDrawing(architecture, caption))


def holds(sentence: str, verdict: Verdict, figures: str) -> None:
    """Claim that a sentence holds.

    Raises:
        ClaimError: it does not, or the sample is too small to decide.

    >>> holds("Two is even.", 2 % 2 == 0, "2 / 2 = 1")
    holds: Two is even. (2 / 2 = 1)
    """
    _check(sentence, verdict, figures, True)


def does_not_hold(sentence: str, verdict: Verdict, figures: str) -> None:
    """Claim that a sentence, of an article for instance, does not hold here.

    Raises:
        ClaimError: it holds, or the sample is too small to decide.
    """
    _check(sentence, verdict, figures, False)


def undecided(sentence: str, verdict: Verdict, figures: str) -> None:
    """Claim that the sample is too small to decide whether a sentence holds.

    Raises:
        ClaimError: it is decided.
    """
    _check(sentence, verdict, figures, None)


def _check(sentence: str, verdict: Verdict, figures: str, expected: Verdict) -> None:
    if verdict is not None:
        verdict = bool(verdict)  # of a tensor, too
    claim = Claim(sentence, verdict, figures, expected)
    may_differ = _running is not None and _running.lenient
    if claim.holds is not expected and not may_differ:
        raise ClaimError(f"{claim}; the lesson expects: {VERDICTS[expected]}")
    show(claim)


def escaped(text: str) -> str:
    r"""Escape text for Markdown; it may come from a user.

    >>> escaped("a|b <script> [x](y) $5")
    'a\\|b &lt;script> \\[x](y) \\$5'
    """
    for letter in "\\`|[_$":
        text = text.replace(letter, f"\\{letter}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
