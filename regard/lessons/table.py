"""The lessons by name, in the order to take them; a lesson's module is imported when it is taught."""

from __future__ import annotations

from regard.errors import ArgumentError
from regard.kinds import of_kind
from regard.lessons.taught import Lesson

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
