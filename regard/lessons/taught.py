"""What a lesson is and what it hands back: one record, shown by terminal, JSON, picture and page alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
