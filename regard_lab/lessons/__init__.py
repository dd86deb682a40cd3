"""Lessons that check claims of well-known articles about attention, with regard's public functions.

A lesson computes one record (`Taught`), from which terminal output, JSON, a picture and a page of the docs are made.
Everything is seeded, so that every machine prints the same results, except for times, whose tables are marked as
measured. The walkthrough is the first lesson: `walk` computes attention for one sentence, step by step.
"""

from typing import TYPE_CHECKING, Any

from regard_lab.lessons.taught import LESSONS, Claim, Lesson, Settings, Table, Taught, find_lesson, to_markdown

if TYPE_CHECKING:
    from regard_lab.lessons.walkthrough import read_weights, walk, walk_run, walk_whole, walk_whole_run

__all__ = [
    "LESSONS", "Claim", "Lesson", "Settings", "Table", "Taught", "find_lesson", "to_markdown",
    "walk", "walk_run", "walk_whole", "walk_whole_run", "read_weights",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The walkthrough imports models, which a list of the lessons does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from regard_lab.lessons import walkthrough

    return getattr(walkthrough, name)
