"""Writes a walkthrough for a terminal, with or without colours, in lines of limited width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from regard.arguments import count_of, of_kind, whole
from regard.packages import needed
from regard_lab.seeing.terminal import visible, visible_text
from regard_lab.text.terminal import printable
from regard_lab.walkthrough.steps import Axis, Scale, Step, Walk, opening_code
from regard_lab.walkthrough.tables import (
    DARK,
    WHITE,
    Gap,
    NumberTable,
    elsewhere,
    formula_text,
    kept,
    largest,
    mixed,
    shade,
    shown,
    signed_colours,
    tables,
    weight_colours,
    whose,
)

if TYPE_CHECKING:
    from rich.text import Text

LEAST, MOST = 40, 160  # limits of the width of a line in characters
ROWS, HEADS = 12, 4  # the most rows of a table and the most heads of a step
INDENT = "    "
LABEL, COLUMN = 14, 10  # the most characters of a row label and of a column label
NARROW = 76  # below this width labels are shorter
MARK = "▸ "  # before the chosen word

Span = tuple[str, str]  # characters, and a style as Rich has them
Line = list[Span]


def to_text(walk: Walk, width: int = 100) -> str:
    """Write a walkthrough as plain text.

    >>> from regard_lab.walkthrough import walk
    >>> print("\\n".join(to_text(walk("Life is short")).splitlines()[:3]))
    Life is short
    3 words; shown in detail: “is”, word 2
    heads: 2, key/value heads: 2, head shown: 0, size of vectors: 8, score: scaled_dot, positions: none,
    """
    return "\n".join(printable("".join(text for text, _ in line).rstrip()) for line in lines(walk, width))


def to_rich(walk: Walk, width: int = 100) -> Text:
    """Write a walkthrough with colours, for a Rich console that does not wrap lines."""
    from rich.text import Text

    return Text("\n").join(
        Text.assemble(*((printable(text), style) for text, style in line)) for line in lines(walk, width)
    )


def lines(walk: Walk, width: int) -> Iterator[Line]:
    """Every line of a walkthrough as spans; tables omit rows and columns that do not fit, with their number."""
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run return it")
    width = min(max(whole("width", width), LEAST), MOST)
    yield from _opening(walk, width)
    section = number = 0
    current = ""
    for step in walk.steps:
        if step.section != current:
            section, number, current = section + 1, 0, step.section
            title = fitted(f"{section}  {visible(current)}", width - 4)
            yield from ([], [(f"{title} {'─' * (width - places(title) - 1)}", "bold cyan")])
        number += 1
        yield from ([], *_step(step, f"{section}.{number}", width, walk))
    yield from _closing(walk, width)


def _opening(walk: Walk, width: int) -> Iterator[Line]:
    yield from _wrapped(" ".join(map(visible, walk.words)), width, "bold")
    if walk.context:
        yield from _wrapped(f"attends to: {' '.join(map(visible, walk.context))}", width, "bold")
    said = f"{count_of(len(walk.words), 'words')}; shown in detail: “{visible(walk.chosen)}”, word {walk.word + 1}"
    yield from _wrapped(said, width, "")
    yield from _wrapped(visible_text(walk.described), width, "dim")
    for place, note in enumerate(walk.notes):
        yield []
        yield from _wrapped(visible_text(note), width, "dim" if place == len(walk.notes) - 1 else "bold yellow")
    yield []
    tensors = [one for one in walk.given if isinstance(one.value, torch.Tensor)]
    if walk.brief:
        numbers = sum(one.value.numel() for one in tensors)
        said = (
            f"{count_of(len(tensors), 'tensors')} of weights with {count_of(numbers, 'numbers', ',')}. The numbers of "
            f"“{visible(walk.chosen)}”{visible_text(elsewhere(walk))} "
        )
        yield from _wrapped(f"{said}are shown here; JSON contains those of all words.", width, "dim")
    for one in () if walk.brief else walk.given:
        sizes = " × ".join(map(str, one.value.shape)) if isinstance(one.value, torch.Tensor) else ""
        head = f"{one.name:<8}{sizes:<11} "
        for place, line in enumerate(_wrapped(visible_text(one.described), width - len(head), "dim")):
            yield [(head if not place else " " * len(head), "dim"), *line]
    yield from _pasted(walk, width)


def _pasted(walk: Walk, width: int) -> Iterator[Line]:
    """The statements that define what the lines of the steps use."""
    if walk.call is None:
        return
    yield []
    yield from _wrapped("To run the lines below in Python, run these two first:", width, "dim")
    for statement in opening_code(walk.call, width - 4, places):
        yield from ([(f"{'... ' if place else '>>> '}{part}", "green")] for place, part in enumerate(statement))


def _step(step: Step, number: str, width: int, walk: Walk) -> Iterator[Line]:
    room = width - len(INDENT)
    word = whose(step) if walk.brief else None
    of = "" if word is None else f"; of “{visible(word)}”"
    heading, shape = f"{number:<5}{step.title}", f"   {step.shape}{of}"
    if places(heading + shape) <= width:
        yield [(heading, "bold"), (shape, "dim")]
    else:
        yield from ([(heading, "bold")], [(f"  {shape}", "dim")])
    for line in _wrapped(visible_text(step.says), room, "") if step.says else ():
        yield [(INDENT, ""), *line]
    if step.formula:
        yield [(f"{INDENT}{formula_text(step.formula)}", "italic")]
    for place, part in enumerate(textwrap.wrap(step.line, room - 4, break_on_hyphens=False)):
        yield [(f"{INDENT}{'>>> ' if not place else '... '}{part}", "green")]
    if not isinstance(step.value, torch.Tensor):
        for line in _wrapped("  ".join(map(visible, step.value)), room, ""):
            yield [(INDENT, ""), *line]
        return
    deepest = largest(step)
    shown_heads = list(tables(step, walk.brief))
    for table in shown_heads[:HEADS]:
        yield from ([(INDENT, ""), *line] for line in _table(table, step.scale, deepest, room, walk.decimals))
    if (more := len(shown_heads) - HEADS) > 0:
        yield [(f"{INDENT}… {count_of(more, 'more heads')}", "dim")]


def _table(table: NumberTable, scale: Scale, deepest: float, width: int, decimals: int) -> Iterator[Line]:
    """A table with labels of its columns and rows."""
    labelled = table.rows.unit != ""
    less = 4 if width < NARROW else 0
    names = _row_labels(table.rows, LABEL - less) if labelled else [""]
    margin = max(map(places, names)) + 1 if labelled else 0
    values = table.values.tolist()
    least = 4 + decimals if table.values.is_floating_point() else 2
    cell = max(least, *(len(shown(x, decimals)) for row in values for x in row))
    if table.columns.unit == "words":
        cell = max(cell, min(COLUMN - less, max(places(visible(label)) for label in table.columns.labels)))
    columns = _columns(table.columns, cell + 1, width - margin)
    if table.title:
        yield [(table.title, "bold")]
    yield [(" " * margin, ""), *_header(table.columns, columns, cell)]
    for row in kept(table.rows, ROWS):
        if isinstance(row, Gap):
            yield [(f"{'':{margin}} … {count_of(row.count, f'more {table.rows.unit}')}", "dim")]
            continue
        style = "bold" if row == table.rows.chosen else ""
        yield [(padded(names[row], margin), style), *_cells(values[row], columns, cell, decimals, deepest, scale)]


def _columns(axis: Axis, cell: int, width: int) -> list[int | Gap]:
    """The columns that fit into the width, gaps included."""
    room = max(width // cell, 1)
    if len(axis) > room:
        room = max((width - 2 * len(_gap(Gap(len(axis))))) // cell, 2)
    return kept(axis, room)


def _header(axis: Axis, columns: Sequence[int | Gap], cell: int) -> Iterator[Span]:
    for column in columns:
        if isinstance(column, Gap):
            yield _gap(column), "dim"
        else:
            label = fitted(visible(axis.labels[column]), cell)
            yield " " * (cell + 1 - places(label)) + label, "bold" if column == axis.chosen else "dim"


def _cells(
    row: Sequence[float], columns: Sequence[int | Gap], cell: int, decimals: int, deepest: float, scale: Scale
) -> Iterator[Span]:
    for column in columns:
        if isinstance(column, Gap):
            yield f"{'…':^{len(_gap(column))}}", "dim"
        else:
            yield " ", ""
            yield f"{shown(row[column], decimals):>{cell}}", _style(row[column], deepest, scale)


def _style(value: float, deepest: float, scale: Scale) -> str:
    """Text and background colour for Rich; numbers have a dark background in every terminal."""
    if scale == "none":
        return ""
    letter, level = shade(value, deepest, scale) or ("p", 0)
    if letter == "h":
        return "dim"
    if letter == "w":
        paper, ink = weight_colours(level, dark=True)
    else:
        colour, share = signed_colours(letter, level)
        paper, ink = mixed(colour, DARK, share), WHITE
    return f"#{ink} on #{paper}"


def _closing(walk: Walk, width: int) -> Iterator[Line]:
    title = "Checks"
    yield from ([], [(f"{title} {'─' * (width - len(title) - 1)}", "bold cyan")])
    for one in walk.checks:
        said = f"{one.line} equals {one.name}; the largest difference is {one.difference:.1e}"
        yield from _wrapped(said, width, "")


def _gap(gap: Gap) -> str:
    return f" …+{gap.count}…"


def _row_labels(axis: Axis, longest: int) -> list[str]:
    """Row labels; words with their numbers and a mark at the chosen one."""
    if axis.unit != "words":
        return list(axis.labels)
    digits = len(str(len(axis)))
    return [
        f"{MARK if place == axis.chosen else '  '}{place + 1:>{digits}} {fitted(visible(label), longest)}"
        for place, label in enumerate(axis.labels)
    ]


def _wrapped(text: str, width: int, style: str) -> Iterator[Line]:
    """The text wrapped into lines; a word longer than a line is cut."""
    line = ""
    for word in text.split():
        if line and places(f"{line} {word}") > width:
            yield [(line, style)]
            line = ""
        line = f"{line} {word}" if line else fitted(word, width)
    yield [(line, style)]


def places(text: str) -> int:
    """The width of a text in terminal cells."""
    with needed("rich", "the terminal"):
        from rich.cells import cell_len
    return cell_len(text)


def fitted(text: str, width: int) -> str:
    """The text in at most `width` terminal cells; a text that was cut ends in "…"."""
    if places(text) <= width:
        return text
    text = text[: 4 * width]  # a letter may be followed by marks of width 0
    while places(text) >= width:
        text = text[:-1]
    return f"{text}…"


def padded(text: str, width: int) -> str:
    return text + " " * (width - places(text))
