"""The lessons on attention: each is one file that runs, and checks what well-known articles say.

A file reads as a page, runs as a script (`python regard_lab/lessons/windows.py`), opens as a notebook (jupytext), is a
page of the site, and is printed by `regard lesson NAME`.
"""

from pathlib import Path

from regard.arguments import of_kind, suggest
from regard.errors import ArgumentError
from regard_lab.teaching.page import LessonPage

CHAPTERS: dict[str, tuple[str, ...]] = {
    "Why attention": ("one_sentence", "recurrent", "fixed_vector", "alignment"),
    "Inside one layer": ("scale", "positions", "causal", "cross", "one_head"),
    "A model that translates": (
        "subwords",
        "encoder",
        "decoder",
        "norms",
        "translation",
        "heads",
        "referent",
    ),
    "Writing text quickly": ("generation", "sampling", "grouped", "latent"),
    "Longer texts": (
        "windows",
        "sparse",
        "choosing",
        "linear",
        "overwriting",
        "approximations",
        "complexity",
    ),
    "Beyond translation": ("relations", "answer_head", "transfer", "caption", "imprecise"),
}
LESSONS = tuple(name for names in CHAPTERS.values() for name in names)


def find_lesson(name: str) -> LessonPage:
    """Read the lesson with the given name.

    Raises:
        ArgumentError: there is no lesson of that name.

    >>> find_lesson("windows").title
    'Stacked windows'
    """
    of_kind("name", name, str, "the name of a lesson, such as 'causal'")
    if name not in LESSONS:
        raise ArgumentError(f"no lesson is called {name!r}; {suggest(name, LESSONS)}")
    return LessonPage.read(Path(__file__).parent / f"{name}.py")
