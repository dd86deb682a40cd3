"""Writes a walkthrough: as text of limited width, as JSON, for the explorer; its formulas as text and MathML."""

import json
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size

from regard.arguments import count_of, of_kind, whole
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk
from regard_lab.seeing.terminal import fitted, visible
from regard_lab.text.terminal import printable
from regard_lab.walkthrough.steps import A_WALK, Axis, Given, Step, Walk, opening_code

LEAST, MOST = 40, 160  # limits of the width of a line in characters
ROWS, HEADS = 12, 4  # the most rows of a table and the most heads of a step
INDENT = "    "
LABEL, COLUMN = 14, 10  # the most characters of a row label and of a column label
NARROW = 76  # below this width labels are shorter
MARK = "▸ "  # before the chosen word


@dataclass(frozen=True)
class Gap:
    """A number of rows or columns that are omitted here."""

    count: int


Table = tuple[
    str, Axis, Axis, torch.Tensor
]  # a head's name or "", the axes, and numbers (rows, columns)


def tables(step: Step, brief: bool) -> list[Table]:
    """The tables of a step whose value is a tensor: one, or one for each head; `brief`: of the followed word only.

    The single row of one word has no label, so its axis has no unit.
    """
    assert isinstance(step.value, torch.Tensor)
    axes, values = step.axes, step.value
    if brief and (place := _followed(step)) is not None:
        axes, values = (
            (*axes[:place], *axes[place + 1 :]),
            values.select(place, axes[place].chosen or 0),
        )
    *heads, rows, columns = axes if len(axes) > 1 else (Axis("", ("",)), *axes)
    values = values.int() if values.dtype == torch.bool else values
    values = values.reshape(-1, len(rows), len(columns))
    titles = heads[0].labels if heads else ("",)
    return [(title, rows, columns, matrix) for title, matrix in zip(titles, values, strict=True)]


def _followed(step: Step) -> int | None:
    """The axis of the followed word in a step of several axes: that of the queries, or of the keys if it has no other.

    None if the step shows all words.
    """
    if len(step.axes) == 1:
        return None
    return next((place for place, axis in enumerate(step.axes) if axis.chosen is not None), None)


def whose(step: Step) -> str | None:
    """The word whose numbers a brief table shows; None if it shows those of all words."""
    place = _followed(step)
    return None if place is None else step.axes[place].labels[step.axes[place].chosen or 0]


def elsewhere(walk: Walk) -> str:
    """What a brief walkthrough shows of another text, such as ` (in the encoder, of “is”)`; empty if there is none."""
    others = dict.fromkeys(
        word for step in walk.steps if (word := whose(step)) not in (None, walk.chosen)
    )
    return (
        f" (in the encoder, of {', '.join(f'“{visible(word)}”' for word in others)})"
        if others
        else ""
    )


def kept(axis: Axis, room: int) -> list[int | Gap]:
    """The indices of an axis that fit: some at both ends and the chosen word, with gaps for the omitted ones.

    >>> kept(Axis("words", tuple("abcdefgh"), chosen=3), 4)
    [0, 1, Gap(count=1), 3, Gap(count=3), 7]
    """
    count = len(axis)
    room = max(room, 2)
    if count <= room:
        return list(range(count))
    tail = max(room // 3, 1)
    places = {*range(room - tail), *range(count - tail, count)}
    if axis.chosen is not None and axis.chosen not in places:
        places.add(axis.chosen)
        places -= {*range(1, room - tail)} & {
            room - tail - 1
        }  # make room for it, but keep the first
    ordered = sorted(places)
    entries: list[int | Gap] = [ordered[0]]
    for before, after in pairwise(ordered):
        entries += [Gap(after - before - 1), after] if after - before > 1 else [after]
    return entries


def shown(value: float, decimals: int) -> str:
    """A number as it is printed in tables: with so many decimals, or three digits if it is large.

    >>> [shown(x, 3) for x in (0.12345, -1.5, -0.0001, 3, 123456.0, float("-inf"))]
    ['0.123', '−1.500', '0.000', '3', '1.23e+05', '−∞']
    """
    if value == -math.inf:
        return "−∞"
    form = "" if isinstance(value, int) else f"z.{decimals}f" if abs(value) < 1000 else ".3g"
    return f"{value:{form}}".replace("-", "−")


def to_text(walk: Walk, width: int = 100) -> str:
    """Write a walkthrough as plain text.

    >>> from regard_lab.walkthrough import walk
    >>> print("\\n".join(to_text(walk("Life is short")).splitlines()[:3]))
    Life is short
    3 words; shown in detail: “is”, word 2
    heads: 2, key/value heads: 2, head shown: 0, size of vectors: 8, score: scaled_dot, positions: none,
    """
    return "\n".join(printable(line.rstrip()) for line in lines(walk, width))


def lines(walk: Walk, width: int) -> Iterator[str]:
    """Every line of a walkthrough; tables omit rows and columns that do not fit, with their number."""
    of_kind("walk", walk, Walk, A_WALK)
    width = min(max(whole("width", width), LEAST), MOST)
    yield from _opening(walk, width)
    for number, (title, steps) in enumerate(
        groupby(walk.steps, key=lambda step: step.section), start=1
    ):
        yield from ("", _ruled(fitted(f"{number}  {visible(title)}", width - 4), width))
        for place, step in enumerate(steps, start=1):
            yield from ("", *_step(step, f"{number}.{place}", width, walk))
    yield from ("", _ruled("Checks", width))
    for one in walk.checks:
        said = f"{one.line} equals {one.name}; the largest difference is {one.difference:.1e}"
        yield from _wrapped(said, width)


def _ruled(title: str, width: int) -> str:
    return f"{title} {'─' * (width - cell_len(title) - 1)}"


def _opening(walk: Walk, width: int) -> Iterator[str]:
    yield from _wrapped(" ".join(map(visible, walk.words)), width)
    if walk.context:
        yield from _wrapped(f"attends to: {' '.join(map(visible, walk.context))}", width)
    said = f"{count_of(len(walk.words), 'words')}; shown in detail: “{visible(walk.chosen)}”, word {walk.word + 1}"
    yield from _wrapped(said, width)
    yield from _wrapped(visible(walk.described), width)
    for note in walk.notes:
        yield ""
        yield from _wrapped(visible(note), width)
    yield ""
    tensors = [one for one in walk.given if isinstance(one.value, torch.Tensor)]
    if walk.brief:
        numbers = sum(one.value.numel() for one in tensors)
        said = (
            f"{count_of(len(tensors), 'tensors')} of weights with {count_of(numbers, 'numbers', ',')}. The numbers of "
            f"“{visible(walk.chosen)}”{elsewhere(walk)} "
        )
        yield from _wrapped(f"{said}are shown here; JSON contains those of all words.", width)
    for one in () if walk.brief else walk.given:
        sizes = " × ".join(map(str, one.value.shape)) if isinstance(one.value, torch.Tensor) else ""
        head = f"{one.name:<8}{sizes:<11} "
        for place, line in enumerate(_wrapped(visible(one.described), width - len(head))):
            yield f"{' ' * len(head) if place else head}{line}"
    if walk.call:
        yield ""
        yield from _wrapped("To run the lines below in Python, run these two first:", width)
        yield from (
            f">>> {statement}" for statement in opening_code(walk.call)
        )  # the terminal wraps it


def _step(step: Step, number: str, width: int, walk: Walk) -> Iterator[str]:
    room = width - len(INDENT)
    word = whose(step) if walk.brief else None
    of = "" if word is None else f"; of “{visible(word)}”"
    heading = f"{number:<5}{step.title}"
    shape = f"   {step.shape}{of}"
    if cell_len(heading + shape) <= width:
        yield f"{heading}{shape}"
    else:
        yield from (heading, f"  {shape}")
    for line in _wrapped(visible(step.says), room) if step.says else ():
        yield f"{INDENT}{line}"
    if step.formula:
        yield f"{INDENT}{formula_text(step.formula)}"
    for place, part in enumerate(textwrap.wrap(step.line, room - 4, break_on_hyphens=False)):
        yield f"{INDENT}{'... ' if place else '>>> '}{part}"
    if not isinstance(step.value, torch.Tensor):
        for line in _wrapped("  ".join(map(visible, step.value)), room):
            yield f"{INDENT}{line}"
        return
    shown_heads = tables(step, walk.brief)
    for table in shown_heads[:HEADS]:
        yield from (f"{INDENT}{line}" for line in _table(table, room, walk.decimals))
    if (more := len(shown_heads) - HEADS) > 0:
        yield f"{INDENT}… {count_of(more, 'more heads')}"


def _table(table: Table, width: int, decimals: int) -> Iterator[str]:
    """A table with labels of its columns and rows; what does not fit is left out, and gaps say how much."""
    title, rows, columns, values = table
    less = 4 if width < NARROW else 0
    names = _row_labels(rows, LABEL - less) if rows.unit else [""]
    margin = max(map(cell_len, names)) + 1 if rows.unit else 0
    texts = [[shown(number, decimals) for number in row] for row in values.tolist()]
    cell = max(
        4 + decimals if values.is_floating_point() else 2,
        *(len(text) for row in texts for text in row),
    )
    if columns.unit == "words":
        cell = max(
            cell, min(COLUMN - less, max(cell_len(visible(label)) for label in columns.labels))
        )
    room = max((width - margin) // (cell + 1), 1)
    if len(columns) > room:
        room = max((width - margin - 2 * len(_gap(Gap(len(columns))))) // (cell + 1), 2)
    chosen = kept(columns, room)
    if title:
        yield title
    yield " " * margin + "".join(_label(columns, column, cell) for column in chosen)
    for row in kept(rows, ROWS):
        if isinstance(row, Gap):
            yield f"{'':{margin}} … {count_of(row.count, f'more {rows.unit}')}"
        else:
            cells = (
                f"{'…':^{len(_gap(column))}}"
                if isinstance(column, Gap)
                else f" {texts[row][column]:>{cell}}"
                for column in chosen
            )
            yield set_cell_size(names[row], margin) + "".join(cells)


def _label(axis: Axis, column: int | Gap, cell: int) -> str:
    if isinstance(column, Gap):
        return _gap(column)
    label = fitted(visible(axis.labels[column]), cell)
    return " " * (cell + 1 - cell_len(label)) + label


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


def _wrapped(text: str, width: int) -> Iterator[str]:
    """The text wrapped into lines; a word longer than a line is cut."""
    line = ""
    for word in text.split():
        if line and cell_len(f"{line} {word}") > width:
            yield line
            line = ""
        line = f"{line} {word}" if line else fitted(word, width)
    yield line


SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
OPERATORS = {"Σ": "∑", "-": "−"}
JOINED = {"_": "msub", "^": "msup", "/": "mfrac"}
FUNCTIONS = {
    "norm",
    "exp",
    "tanh",
    "sin",
    "cos",
    "relu",
    "gelu",
    "silu",
}  # names of several letters; "ij" is i and j


def formula_text(formula: str) -> str:
    """The formula as plain text.

    >>> formula_text("ω_{ij} = {q_i · k_j}/{√{d}}")
    'ω_ij = q_i · k_j / √d'
    """
    return formula.replace("}/{", "} / {").translate(str.maketrans("", "", '{}"'))


def formula_elements(formula: str) -> list[Any]:
    """The formula as a MathML element in nested lists: its name, then its text or the elements inside.

    >>> formula_elements("q_i")
    ['math', ['msub', ['mi', 'q'], ['mi', 'i']]]
    """
    return ["math", *_elements(iter(SIGNS.findall(formula)))]


def _elements(signs: Iterator[str]) -> list[list[Any]]:
    """The elements up to the end of the group; `_`, `^` and `/` include the element before them."""
    elements: list[list[Any]] = []
    for sign in signs:
        if sign == "}":
            break
        if sign == "^" and elements[-1][0] == "msub":
            elements.append(["msubsup", *elements.pop()[1:], _element(next(signs), signs)])
        elif sign in JOINED:
            elements.append([JOINED[sign], elements.pop(), _element(next(signs), signs)])
        else:
            elements.append(_element(sign, signs))
    return elements


def _element(sign: str, signs: Iterator[str]) -> list[Any]:
    """A sign, or the group or root that begins with it, as one element."""
    if sign == "{":
        inside = _elements(signs)
        return inside[0] if len(inside) == 1 else ["mrow", *inside]
    if sign == "√":
        return ["msqrt", _element(next(signs), signs)]
    if sign.startswith('"'):
        return ["mtext", sign[1:-1]]
    if sign.isdecimal():
        return ["mn", sign]
    if sign == "∞" or (sign.isalpha() and sign != "Σ"):
        return (
            ["mi", sign]
            if len(sign) == 1 or sign in FUNCTIONS
            else ["mrow", *(["mi", one] for one in sign)]
        )
    return ["mo", OPERATORS.get(sign, sign)]


def shown_walk(walk: Walk) -> ShownWalk:
    """A walkthrough as the explorer shows it.

    >>> from regard_lab.walkthrough import walk
    >>> shown_walk(walk("Life is short")).steps[3].line
    'x = F.embedding(ids, table)'
    """
    of_kind("walk", walk, Walk, A_WALK)
    steps = tuple(
        ShownStep(
            one.section,
            one.title,
            one.says,
            formula_elements(one.formula) if one.formula else None,
            one.line,
            one.axes,
            one.value,
            one.scale,
        )
        for one in walk.steps
    )
    difference = max((check.difference for check in walk.checks), default=0.0)
    return ShownWalk(
        steps, walk.words, walk.word, " ".join(walk.notes), len(walk.checks), difference
    )


MOST_WEIGHTS = (
    10_000  # numbers; JSON of a whole model leaves out larger weights, which the run's file has
)


def to_json(walk: Walk) -> str:
    """Write a walkthrough as JSON; minus infinity, which JSON does not have, becomes null.

    >>> from regard_lab.walkthrough import walk
    >>> record = json.loads(to_json(walk("Life is short")))
    >>> record["word"], record["steps"][3]["line"], record["steps"][3]["shape"]
    ({'number': 2, 'text': 'is'}, 'x = F.embedding(ids, table)', [3, 8])
    """
    of_kind("walk", walk, Walk, A_WALK)
    record = {
        "words": walk.words,
        "context": walk.context or None,
        "word": {"number": walk.word + 1, "text": walk.chosen},
        "settings": walk.settings,
        "notes": walk.notes,
        "given": [_given_record(one, walk.brief) for one in walk.given],
        "steps": [_step_record(step) for step in walk.steps],
        "checks": [vars(check) for check in walk.checks],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode(
        "utf-8"
    )  # lone surrogates, escaped as in JSON


def _step_record(step: Step) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in ("section", "name", "title", "says")},
        "formula": formula_text(step.formula),
        "line": step.line,
        "shape": [len(axis) for axis in step.axes],
        "axes": [{"unit": axis.unit, "labels": axis.labels} for axis in step.axes],
        "value": _finite(
            step.value.tolist() if isinstance(step.value, torch.Tensor) else list(step.value)
        ),
    }


def _given_record(one: Given, brief: bool) -> dict[str, Any]:
    """A given variable as JSON; objects as their `repr`, and null for large weights of a whole model."""
    record = {"name": one.name, "says": one.described}
    value = one.value
    if isinstance(value, torch.Tensor):
        left_out = brief and value.numel() > MOST_WEIGHTS
        return {
            **record,
            "shape": list(value.shape),
            "value": None if left_out else _finite(value.tolist()),
        }
    return {**record, "value": value if isinstance(value, str | list) else repr(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
