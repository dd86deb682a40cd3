"""What a lesson is and the record it returns, all lessons by name, and the record as a page of Markdown.

The module of a lesson is imported when the lesson is taught. Shares of a sample carry their standard error, so that a
claim about them can be undecided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.arguments import of_kind, suggest
from regard.errors import ArgumentError
from regard.reprs import brief

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Verdict = bool | None  # whether a claim holds; None where the sample is too small to tell
Lecture = tuple[dict[str, Any], tuple[str, ...]]  # the numbers of a lesson, and its paragraphs

ERRORS = 2  # standard errors that a difference must exceed


@dataclass(frozen=True)
class Estimate:
    """A number measured on a sample, and its standard error.

    >>> Estimate.share(0.93, 200).above(0.9), Estimate.share(0.97, 200).above(0.9), Estimate.share(0.5, 200).above(0.9)
    (None, True, False)
    """

    value: float
    error: float

    @classmethod
    def share(cls, value: float, of: int) -> Estimate:
        """The share `value` of `of` independent cases.

        The error is sqrt(p (1 - p) / n) after two cases of each kind are added, so that it is above 0 for shares of 0
        and 1 too.

        Source: Agresti and Coull 1998.

        >>> print(Estimate.share(0.5, 196))
        0.500 ± 0.035
        """
        count = of + 4
        near = (value * of + 2) / count
        return cls(value, math.sqrt(near * (1 - near) / count))

    def times(self, factor: float) -> Estimate:
        """The same estimate in other units."""
        return Estimate(self.value * factor, self.error * abs(factor))

    def above(self, other: Estimate | float) -> Verdict:
        """Whether this is the larger one: True or False beyond two standard errors of the difference, else None."""
        other = other if isinstance(other, Estimate) else Estimate(other, 0.0)
        difference, error = self.value - other.value, math.hypot(self.error, other.error)
        return None if abs(difference) <= ERRORS * error else difference > 0

    def below(self, other: Estimate | float) -> Verdict:
        """Whether this is the smaller one, by the same rule."""
        return self.times(-1).above(other.times(-1) if isinstance(other, Estimate) else -other)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


def every(*verdicts: Verdict) -> Verdict:
    """Whether all hold: False if one does not, else None if one is undecided.

    >>> every(True, None), every(None, False), every(True, True)
    (None, False, True)
    """
    if False in verdicts:
        return False
    return None if None in verdicts else True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a lesson.

    Args:
        text: used instead of the lesson's own sentence, if it has one.
        run: the folder of a training run, for lessons about a trained model.
        seed: of every random number.

    Raises:
        ArgumentError: the seed is not a whole number from 0 to 2**32 - 1.
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
    """A lesson: a question and the module that computes its answer.

    The module has `teach(settings)`, which returns the numbers of the lesson and its paragraphs; `tables`, `claims` and
    `draw`, which read these numbers; and `CODE`, a short example that runs as it is.

    Args:
        name: of the lesson and of its module in `regard_lab.lessons`.
        title: a few words.
        question: one sentence.
        takes: which of "text" and "run" the lesson accepts; a lesson that accepts a run requires it.
    """

    name: str
    title: str
    question: str
    takes: frozenset[str] = frozenset()

    def teach(self, settings: Settings | None = None) -> Taught:
        """Compute the record of the lesson.

        Raises:
            ArgumentError: a text or a run for a lesson that does not accept it, or no run for one that requires it.
        """
        settings = settings or Settings()
        if settings.text is not None and "text" not in self.takes:
            raise ArgumentError(f"lesson {self.name} uses its own sentences; leave the text out")
        if settings.run is not None and "run" not in self.takes:
            raise ArgumentError(f"lesson {self.name} needs no trained model; leave the run out")
        if settings.run is None and "run" in self.takes:
            raise ArgumentError(
                f"lesson {self.name} needs a trained translator; give one with --run RUN, such as runs/demo, "
                f"which 'regard demo' makes"
            )
        page = import_module(f"regard_lab.lessons.{self.name}")
        numbers, paragraphs = page.teach(settings)
        return Taught(
            lesson=self, paragraphs=paragraphs, tables=tuple(page.tables(numbers)), claims=tuple(page.claims(numbers)),
            code=page.CODE, numbers=numbers, drawing=partial(page.draw, numbers),
        )  # fmt: skip


@brief
@dataclass(frozen=True)
class Table:
    """A table of text cells; `measured` is True if they depend on the machine, as times do."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    measured: bool = False


@dataclass(frozen=True)
class Claim:
    """A sentence that the lesson checked, whether it holds, and the figures that show it.

    Args:
        holds: None if the sample is too small to tell, that is, within two standard errors of the bound.
        figures: shares of a sample with their standard error, as 0.930 ± 0.018.
    """

    sentence: str
    holds: Verdict
    figures: str

    @property
    def verdict(self) -> str:
        """In words: holds, does not hold, or undecided."""
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]


@brief
@dataclass(frozen=True, kw_only=True, eq=False)
class Taught:
    """The record of a lesson, from which text, JSON, picture and page are made.

    Args:
        lesson: the lesson that was run.
        paragraphs: plain text, shown before the tables.
        tables, claims: computed with regard's public functions.
        code: a short example that runs as it is.
        numbers: JSON values for `--json` and for the figure; times are under "measured".
        drawing: draws `numbers` into an empty figure.
    """

    lesson: Lesson
    paragraphs: tuple[str, ...]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    code: str
    numbers: dict[str, Any]
    drawing: Callable[[Figure], None]

    def draw(self, path: str | Path) -> None:
        """Draw the lesson's figure into a PNG or SVG; an existing file is replaced atomically.

        Raises:
            ArgumentError: the path ends in neither .png nor .svg, or its folder does not exist.
            CheckpointError: the file could not be written.
            MissingPackageError: matplotlib is not installed.
        """
        from regard_lab.seeing.canvas import checked_path, new_figure, save

        path = checked_path(path)
        with new_figure() as figure:
            self.drawing(figure)
            save(figure, path)

    def to_dict(self) -> dict[str, Any]:
        """The record without the figure, as JSON values."""
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

# In the order of a story: from one sentence to a model that translates, and what came after.
_ALL = (
    Lesson("recurrent", "Attention instead of recurrence", "Why did attention replace recurrent networks?"),
    Lesson(
        "fixed_vector", "A sentence in one vector", "Why does an encoder-decoder without attention fail with length?"
    ),
    Lesson("alignment", "Bahdanau and Luong", "Does a decoder attend before or after it updates its state?", TEXT),
    Lesson("scale", "Why scores are scaled", "Why are scores divided by the square root of head_dim?", TEXT),
    Lesson("positions", "Word order", "How does attention know the order of the words?", TEXT),
    Lesson("causal", "The causal mask", "How does the mask work, and do masked words really have no effect?", TEXT),
    Lesson("cross", "Cross-attention", "How does one sequence attend to another of a different length and size?"),
    Lesson("one_head", "One head or many", "What can several narrow heads do that one wide head cannot?"),
    Lesson("encoder", "The encoder", "What does each part of an encoder layer do to the vector of a word?", TEXT),
    Lesson("decoder", "The decoder", "How does one pass train every position, if words are written one by one?", TEXT),
    Lesson("translation", "Encoder and decoder", "What does the decoder take from the encoder, and when?"),
    Lesson("heads", "What each head does", "Which head looks from a word to the word it belongs to?", RUN),
    Lesson("referent", "The animal and the street", "What does *it* look at, and does the translation use it?", RUN),
    Lesson("generation", "Generating with a cache", "What does a cache store and save while a text is written?", TEXT),
    Lesson("grouped", "Fewer key/value heads", "What do shared key/value heads save, and what do they cost?", TEXT),
    Lesson("windows", "Stacked windows", "How far does a stack of layers with narrow windows look?", TEXT),
    Lesson("sparse", "Sparse patterns", "Which pairs can attention leave out, and what do more layers recover?"),
    Lesson("linear", "Linear attention", "How can attention cost n instead of n²?", TEXT),
    Lesson("approximations", "Five approximations", "What does each cheaper attention estimate, and how well?"),
    Lesson("complexity", "Cost and length", "What does each kind of layer cost when the text gets longer?"),
    Lesson("relations", "Heads and relations", "Do heads that learned from natural text show relations between words?"),
    Lesson(
        "answer_head", "A head that is the answer", "Can a pretrained head be right, and what does it need for that?"
    ),
    Lesson("transfer", "Transfer learning", "Do texts without labels save labels?"),
    Lesson(
        "caption", "A picture that follows its caption", "How do words steer a picture through cross-attention?", TEXT
    ),
    Lesson("imprecise", "Where articles are imprecise", "Which sentences of the articles are not exact?"),
)
LESSONS: dict[str, Lesson] = {lesson.name: lesson for lesson in _ALL}


WALKTHROUGH = "walkthrough"  # the first page of the lessons, and a command of its own


def find_lesson(name: str) -> Lesson:
    """Return the lesson with the given name.

    Raises:
        ArgumentError: there is no lesson of that name.

    >>> find_lesson("causal").title
    'The causal mask'
    """
    of_kind("name", name, str, "the name of a lesson, such as 'causal'")
    if name == WALKTHROUGH:
        raise ArgumentError('the walkthrough is a command of its own; use: regard walkthrough "your sentence"')
    if name not in LESSONS:
        raise ArgumentError(f"no lesson is called {name!r}; {suggest(name, LESSONS)}")
    return LESSONS[name]


MEASURED = "*Measured on one machine; yours will differ.*"


def to_markdown(taught: Taught, figure_name: str | None = None) -> str:
    """Format a lesson as a page of Markdown: question, paragraphs, figure, tables, claims and code.

    Args:
        taught: the record that `Lesson.teach` returned.
        figure_name: the path of the picture relative to the page; None for a page without a picture.

    Returns:
        The page. A line `MEASURED` precedes tables that depend on the machine.

    Raises:
        ArgumentError: `taught` is not the record of a lesson.
    """
    of_kind("taught", taught, Taught, "what Lesson.teach returns")
    lesson = taught.lesson
    parts = [f"# {lesson.title}", f"**{_prose(lesson.question)}**", *map(_prose, taught.paragraphs)]
    if figure_name is not None:
        parts.append(f"![{lesson.title}]({figure_name})")
    for table in taught.tables:
        parts += _table(table)
    parts += ["## Claims checked", "\n".join(_claims(taught))]
    parts += ["## Try it", f"```python\n{taught.code}\n```"]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> list[str]:
    lines = [_row(table.columns), _row(("---",) * len(table.columns)), *map(_row, table.rows)]
    return [f"### {_prose(table.title)}", *([MEASURED] if table.measured else []), "\n".join(lines)]


def _claims(taught: Taught) -> list[str]:
    return [f"- {_verdict(claim)}: {_prose(claim.sentence)} ({_prose(claim.figures)})" for claim in taught.claims]


def _verdict(claim: Claim) -> str:
    words = claim.verdict.capitalize()
    return words if claim.holds else f"**{words}**"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_prose, cells))} |"


def _prose(text: str) -> str:
    r"""Escape text for Markdown, except *emphasis*; the text may come from a user.

    >>> _prose("a|b <script> [x](y) *it*")
    'a\\|b &lt;script> \\[x](y) *it*'
    """
    return re.sub(r"([\\`|\[_])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
