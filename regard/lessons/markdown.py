"""A lesson as a page of Markdown."""

from __future__ import annotations

import re

from regard.kinds import of_kind
from regard.lessons.taught import Table, Taught

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
