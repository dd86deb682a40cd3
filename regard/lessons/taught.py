"""What a lesson is and the record it returns, all lessons by name, and the record as a page of Markdown.

The module of a lesson is imported when the lesson is taught.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.arguments import of_kind
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a reader may choose.

    Args:
        text: shown instead of the lesson's own sentence, where it has one.
        run: the folder of a training, for lessons about what was learned.
        seed: of every number that is drawn.

    Raises:
        ArgumentError: a seed that is no whole number from 0 to 2**32 - 1.
    """

    text: str | None = None
    run: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.run, str):
            object.__setattr__(self, "run", Path(self.run))
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**32:
            raise ArgumentError(f"the seed is {self.seed!r}; it is a whole number from 0 to {2**32 - 1}")


@dataclass(frozen=True)
class Lesson:
    """A question, and the way to its answer.

    Args:
        name: as it is asked for, and the module that teaches it.
        title: a few words.
        question: one sentence.
        takes: which of "text" and "run" may be given; a lesson that takes a run needs one.
    """

    name: str
    title: str
    question: str
    takes: frozenset[str] = frozenset()

    def teach(self, settings: Settings | None = None) -> Taught:
        """Compute everything that the lesson shows.

        Raises:
            ArgumentError: a text or a run for a lesson that has no use for it, or no run for one that needs it.
        """
        settings = settings or Settings()
        if settings.text is not None and "text" not in self.takes:
            raise ArgumentError(f"lesson {self.name} shows sentences of its own; leave the text out")
        if settings.run is not None and "run" not in self.takes:
            raise ArgumentError(f"lesson {self.name} needs no trained model; leave the run out")
        if settings.run is None and "run" in self.takes:
            raise ArgumentError(
                f"lesson {self.name} looks into a trained translator; give one with --run RUN, such as the runs/demo "
                f"that 'regard demo' makes"
            )
        return import_module(f"regard.lessons.{self.name}").teach(settings)


@dataclass(frozen=True)
class Table:
    """Cells as they are read; `measured` where they depend on the machine, as times do."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    measured: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence that was put to the test, whether it holds, and the figures that say so."""

    sentence: str
    holds: bool
    figures: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Taught:
    """All that a lesson shows.

    Args:
        lesson: which.
        paragraphs: plain text, in the order of reading; before the tables.
        tables, claims: computed by regard's own calls.
        code: the few lines that a reader would type; they run as they are.
        numbers: JSON values, what `--json` shows and the figure draws; times stand under "measured".
        drawing: draws them into an empty figure.
    """

    lesson: Lesson
    paragraphs: tuple[str, ...]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    code: str
    numbers: dict[str, Any]
    drawing: Callable[[Figure], None]

    def draw(self, path: str | Path) -> None:
        """Draw the lesson's figure into a PNG; an old one is replaced in one instant.

        Raises:
            ArgumentError: a path that is no PNG or has no folder.
            CheckpointError: the file could not be written.
            MissingPackageError: matplotlib is not installed.
        """
        from regard.inspection.canvas import checked_path, new_figure, save

        path = checked_path(path)
        with new_figure() as figure:
            self.drawing(figure)
            save(figure, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the figure as JSON values."""
        return {
            "lesson": self.lesson.name,
            "title": self.lesson.title,
            "question": self.lesson.question,
            "paragraphs": list(self.paragraphs),
            "tables": [
                {
                    "title": table.title,
                    "columns": list(table.columns),
                    "rows": [list(row) for row in table.rows],
                    "measured": table.measured,
                }
                for table in self.tables
            ],
            "claims": [vars(claim) for claim in self.claims],
            "code": self.code,
            "numbers": self.numbers,
        }


TEXT, RUN = frozenset({"text"}), frozenset({"run"})

_ALL = (
    Lesson("scale", "The square root", "Why are scores divided by the square root of head_dim?", TEXT),
    Lesson("positions", "Where a word stands", "How does attention know the order of the words?", TEXT),
    Lesson("causal", "The mask", "How is the future hidden, and is it hidden for good?", TEXT),
    Lesson("windows", "Stacked windows", "How far does a stack of layers see whose windows are narrow?", TEXT),
    Lesson("grouped", "Fewer keys and values", "What do shared key/value heads save, and what do they lose?", TEXT),
    Lesson("cross", "An image asks a sentence", "How does one thing attend to another of a different size?"),
    Lesson("alignment", "Bahdanau and Luong", "Does a decoder attend before it moves on, or after?", TEXT),
    Lesson("linear", "The other brackets", "How can attention cost n instead of n²?", TEXT),
    Lesson("heads", "What each head does", "Which head looks from a word to the one it belongs to?", RUN),
    Lesson("referent", "The animal and the street", "What does *it* look at, and does the translation use it?", RUN),
)
LESSONS: dict[str, Lesson] = {lesson.name: lesson for lesson in _ALL}


def find_lesson(name: str) -> Lesson:
    """The lesson of that name.

    Raises:
        ArgumentError: there is none.

    >>> find_lesson("causal").title
    'The mask'
    """
    of_kind("name", name, str, "the name of a lesson, such as 'causal'")
    if name not in LESSONS:
        raise ArgumentError(f"no lesson is called {name!r}; there are {', '.join(LESSONS)}")
    return LESSONS[name]


MEASURED = "*Measured on one machine; yours will differ.*"


def to_markdown(taught: Taught, figure_name: str | None = None) -> str:
    """The page: question, paragraphs, figure, tables, claims and code.

    Args:
        taught: what a lesson handed back.
        figure_name: the picture's name as the page refers to it; None for a page without one.

    Returns:
        Lines that end with a line break. Tables that depend on the machine follow a line that says so, `MEASURED`.

    Raises:
        ArgumentError: it is not what a lesson handed back.
    """
    of_kind("taught", taught, Taught, "what Lesson.teach gives")
    lesson = taught.lesson
    parts = [f"# {lesson.title}", f"**{_prose(lesson.question)}**", *map(_prose, taught.paragraphs)]
    if figure_name is not None:
        parts.append(f"![{lesson.title}]({figure_name})")
    for table in taught.tables:
        parts += _table(table)
    parts += ["## What was put to the test", "\n".join(_claims(taught))]
    parts += ["## Try it", f"```python\n{taught.code}\n```"]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> list[str]:
    lines = [_row(table.columns), _row(("---",) * len(table.columns)), *map(_row, table.rows)]
    return [f"### {_prose(table.title)}", *([MEASURED] if table.measured else []), "\n".join(lines)]


def _claims(taught: Taught) -> list[str]:
    return [
        f"- {'Holds' if claim.holds else '**Does not hold**'}: {_prose(claim.sentence)} ({_prose(claim.figures)})"
        for claim in taught.claims
    ]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_prose, cells))} |"


def _prose(text: str) -> str:
    r"""Text that Markdown shows as it stands, but for *emphasis*: a reader's own words may hold anything.

    >>> _prose("a|b <script> [x](y) *it*")
    'a\\|b &lt;script> \\[x](y) *it*'
    """
    return re.sub(r"([\\`|\[_])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
