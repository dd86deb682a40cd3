"""Writes a walkthrough: as text of limited width, as JSON, for the explorer; its formulas as text and MathML."""

import json
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size

from regard.arguments import count_of, of_kind, whole
from regard_lab.seeing.architecture import architecture_of
from regard_lab.seeing.architecture import to_text as architecture_text
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk
from regard_lab.seeing.terminal import fitted, visible
from regard_lab.text.terminal import printable
from regard_lab.text.writing import decimal
from regard_lab.walkthrough.steps import A_WALK, Axis, Given, Step, Walk, opening_code

# Limits of the width of a line, in characters.
LEAST = 40
MOST = 160

# The most rows of a table, and the most heads of a step.
ROWS = 12
HEADS = 4

# The most characters of a row label and of a column label; below the narrow width labels are shorter.
LABEL = 14
COLUMN = 10
NARROW = 76

INDENT = "    "

# Stands before the chosen word.
MARK = "▸ "


@dataclass(frozen=True)
class Gap:
    """A number of rows or columns that are omitted here."""

    count: int


# A head's name or "", the axes of rows and columns, and the numbers (rows, columns).
Table = tuple[str, Axis, Axis, torch.Tensor]


def tables(step: Step, brief: bool) -> list[Table]:
    """The tables of a step whose value is a tensor: one, or one for each head; `brief`: of the followed word only.

    The single row of one word has no label, so its axis has no unit.
    """
    assert isinstance(step.value, torch.Tensor)
    axes = step.axes
    values = step.value
    place = _followed(step)
    if brief and place is not None:
        values = values.select(place, axes[place].chosen or 0)
        axes = (*axes[:place], *axes[place + 1 :])
    if len(axes) == 1:
        axes = (Axis("", ("",)), *axes)
    if values.dtype == torch.bool:
        values = values.int()

    *heads, rows, columns = axes
    titles = heads[0].labels if heads else ("",)
    values = values.reshape(-1, len(rows), len(columns))
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
    if place is None:
        return None
    words = step.axes[place]
    return words.labels[words.chosen or 0]


def elsewhere(walk: Walk) -> str:
    """What a brief walkthrough shows of another text, such as ` (in the encoder, of “is”)`; empty if there is none."""
    # A dictionary keeps the words in their order, each once.
    shown_words = dict.fromkeys(whose(step) for step in walk.steps)
    quoted = [f"“{visible(word)}”" for word in shown_words if word not in (None, walk.chosen)]
    if not quoted:
        return ""
    return f" (in the encoder, of {', '.join(quoted)})"


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
        # Make room for it, but keep the first.
        last_of_head = room - tail - 1
        if last_of_head > 0:
            places.discard(last_of_head)

    ordered = sorted(places)
    entries: list[int | Gap] = [ordered[0]]
    for before, after in pairwise(ordered):
        omitted = after - before - 1
        if omitted > 0:
            entries.append(Gap(omitted))
        entries.append(after)
    return entries


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
    yield from _model(walk, width)

    sections = groupby(walk.steps, key=lambda step: step.section)
    for number, (title, steps) in enumerate(sections, start=1):
        yield from ("", _ruled(fitted(f"{number}  {visible(title)}", width - 4), width))
        for place, step in enumerate(steps, start=1):
            yield from ("", *_step(step, f"{number}.{place}", width, walk))

    yield from ("", _ruled("Checks", width))
    for check in walk.checks:
        said = f"{check.line} equals {check.name}; the largest difference is {check.difference:.1e}"
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
    if walk.brief:
        yield from _wrapped(_counted_weights(walk), width)
    else:
        for variable in walk.given:
            yield from _variable(variable, width)

    if walk.call:
        yield ""
        yield from _wrapped("To run the lines below in Python, run these two first:", width)
        # Not wrapped, so that they can be copied; the terminal wraps them.
        for statement in opening_code(walk.call):
            yield f">>> {statement}"


def _model(walk: Walk, width: int) -> Iterator[str]:
    """The drawing of the model, where a whole one is walked through."""
    for variable in walk.given:
        if variable.name == "model":
            yield from ("", _ruled("The model", width), "")
            drawing = architecture_text(architecture_of(variable.value.config), width)
            yield from drawing.splitlines()


def _counted_weights(walk: Walk) -> str:
    """How many weights there are, and whose numbers a brief walkthrough shows."""
    values = [variable.value for variable in walk.given]
    weights = [value for value in values if isinstance(value, torch.Tensor)]
    tensors = count_of(len(weights), "tensors")
    numbers = count_of(sum(weight.numel() for weight in weights), "numbers", ",")
    words = f"“{visible(walk.chosen)}”{elsewhere(walk)}"
    return (
        f"{tensors} of weights with {numbers}. "
        f"The numbers of {words} are shown here; JSON contains those of all words."
    )


def _variable(variable: Given, width: int) -> Iterator[str]:
    """The lines of a given variable: its name, its sizes, and beside them what it is."""
    sizes = ""
    if isinstance(variable.value, torch.Tensor):
        sizes = " × ".join(map(str, variable.value.shape))
    margin = f"{variable.name:<8}{sizes:<11} "
    for line in _wrapped(visible(variable.described), width - len(margin)):
        yield f"{margin}{line}"
        margin = " " * len(margin)


def _step(step: Step, number: str, width: int, walk: Walk) -> Iterator[str]:
    room = width - len(INDENT)
    word = whose(step) if walk.brief else None
    of_word = "" if word is None else f"; of “{visible(word)}”"
    heading = f"{number:<5}{step.title}"
    shape = f"   {step.shape}{of_word}"
    if cell_len(heading + shape) <= width:
        yield f"{heading}{shape}"
    else:
        yield from (heading, f"  {shape}")

    if step.says:
        for line in _wrapped(visible(step.says), room):
            yield f"{INDENT}{line}"
    if step.formula:
        yield f"{INDENT}{formula_text(step.formula)}"
    prompt = ">>> "
    for part in textwrap.wrap(step.line, room - 4, break_on_hyphens=False):
        yield f"{INDENT}{prompt}{part}"
        prompt = "... "

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
    shorter = 4 if width < NARROW else 0
    names = [""]
    margin = 0
    if rows.unit:
        names = _row_labels(rows, LABEL - shorter)
        margin = max(map(cell_len, names)) + 1

    texts = [_row_texts(row, decimals) for row in values.tolist()]
    least = 4 + decimals if values.is_floating_point() else 2
    cell = max(least, *map(len, chain.from_iterable(texts)))
    if columns.unit == "words":
        longest = max(cell_len(visible(label)) for label in columns.labels)
        cell = max(cell, min(COLUMN - shorter, longest))

    room = max((width - margin) // (cell + 1), 1)
    if len(columns) > room:
        # Two gaps may stand beside the columns, neither longer than one that omits all columns.
        gaps = 2 * len(_gap(Gap(len(columns))))
        room = max((width - margin - gaps) // (cell + 1), 2)
    chosen = kept(columns, room)

    if title:
        yield title
    labels = [_label(columns, column, cell) for column in chosen]
    yield " " * margin + "".join(labels)
    for row in kept(rows, ROWS):
        if isinstance(row, Gap):
            yield f"{'':{margin}} … {count_of(row.count, f'more {rows.unit}')}"
        else:
            cells = [_cell(texts[row], column, cell) for column in chosen]
            yield set_cell_size(names[row], margin) + "".join(cells)


def _row_texts(row: list[float], decimals: int) -> list[str]:
    return [decimal(number, decimals) for number in row]


def _cell(texts: list[str], column: int | Gap, cell: int) -> str:
    if isinstance(column, Gap):
        return f"{'…':^{len(_gap(column))}}"
    return f" {texts[column]:>{cell}}"


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
    labels = []
    for place, word in enumerate(axis.labels):
        mark = MARK if place == axis.chosen else "  "
        labels.append(f"{mark}{place + 1:>{digits}} {fitted(visible(word), longest)}")
    return labels


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

# Names of several letters; other letters side by side are names of their own, as in "ij".
FUNCTIONS = {"norm", "exp", "tanh", "sin", "cos", "relu", "gelu", "silu"}


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
        if len(sign) == 1 or sign in FUNCTIONS:
            return ["mi", sign]
        return ["mrow", *(["mi", letter] for letter in sign)]
    return ["mo", OPERATORS.get(sign, sign)]


def shown_walk(walk: Walk) -> ShownWalk:
    """A walkthrough as the explorer shows it.

    >>> from regard_lab.walkthrough import walk
    >>> shown_walk(walk("Life is short")).steps[3].line
    'x = F.embedding(ids, table)'
    """
    of_kind("walk", walk, Walk, A_WALK)
    steps = tuple(_shown_step(step) for step in walk.steps)
    note = " ".join(walk.notes)
    difference = max((check.difference for check in walk.checks), default=0.0)
    return ShownWalk(steps, walk.words, walk.word, note, len(walk.checks), difference)


def _shown_step(step: Step) -> ShownStep:
    formula = formula_elements(step.formula) if step.formula else None
    return ShownStep(
        step.section,
        step.title,
        step.says,
        formula,
        step.line,
        step.axes,
        step.value,
        step.scale,
    )


# JSON of a whole model leaves out weights of more numbers, which the run's file has.
MOST_WEIGHTS = 10_000


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
        "given": [_given_record(variable, walk.brief) for variable in walk.given],
        "steps": [_step_record(step) for step in walk.steps],
        "checks": [vars(check) for check in walk.checks],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    # Lone surrogates, which UTF-8 does not have, are escaped as in JSON.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _step_record(step: Step) -> dict[str, Any]:
    value = step.value
    listed = value.tolist() if isinstance(value, torch.Tensor) else list(value)
    return {
        "section": step.section,
        "name": step.name,
        "title": step.title,
        "says": step.says,
        "formula": formula_text(step.formula),
        "line": step.line,
        "shape": [len(axis) for axis in step.axes],
        "axes": [{"unit": axis.unit, "labels": axis.labels} for axis in step.axes],
        "value": _finite(listed),
    }


def _given_record(one: Given, brief: bool) -> dict[str, Any]:
    """A given variable as JSON; objects as their `repr`, and null for large weights of a whole model."""
    record: dict[str, Any] = {"name": one.name, "says": one.described}
    value = one.value
    if isinstance(value, torch.Tensor):
        left_out = brief and value.numel() > MOST_WEIGHTS
        record["shape"] = list(value.shape)
        record["value"] = None if left_out else _finite(value.tolist())
    elif isinstance(value, str | list):
        record["value"] = value
    else:
        record["value"] = repr(value)
    return record


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if value == -math.inf else value
