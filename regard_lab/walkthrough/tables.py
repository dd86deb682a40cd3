"""What all views of a walkthrough share: formulas, tables, colours; and the walkthrough as JSON and for the explorer.

The colours are the same in terminal, page and pictures; attention weights have those of `regard_lab.seeing`. They can
be read without distinguishing red from green, and every number is printed too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import Any

import torch

from regard.arguments import of_kind
from regard_lab.seeing.canvas import DARK_SCALE, SCALE
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk
from regard_lab.walkthrough.steps import Axis, Given, Scale, Step, Walk

SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
OPERATORS = {"Σ": "∑", "-": "−"}
FUNCTIONS = {"norm", "exp", "tanh", "sin", "cos", "relu", "gelu", "silu"}  # names of several letters; "ij" is i and j


def formula_text(formula: str) -> str:
    """The formula as plain text.

    >>> formula_text("ω_{ij} = {q_i · k_j}/{√{d}}")
    'ω_ij = q_i · k_j / √d'
    """
    return formula.replace("}/{", "} / {").translate(str.maketrans("", "", '{}"'))


def formula_mathml(formula: str) -> str:
    """The formula as a MathML element, which browsers and screen readers understand without a script.

    >>> formula_mathml("q_i")
    '<math display="block"><msub><mi>q</mi><mi>i</mi></msub></math>'
    """
    return f'<math display="block">{"".join(_elements(iter(SIGNS.findall(formula))))}</math>'


def _elements(signs: Iterator[str]) -> list[str]:
    """The elements up to the end of the group; `_`, `^` and `/` include the element before them."""
    elements: list[str] = []
    for sign in signs:
        if sign == "}":
            break
        if sign in ("_", "^"):
            elements.append(_scripted(elements.pop(), sign, _element(next(signs), signs)))
        elif sign == "/":
            elements.append(f"<mfrac>{elements.pop()}{_element(next(signs), signs)}</mfrac>")
        else:
            elements.append(_element(sign, signs))
    return elements


def _element(sign: str, signs: Iterator[str]) -> str:
    """A sign, or the group or root that begins with it, as one element."""
    if sign == "{":
        inside = _elements(signs)
        alone = len(inside) == 1 and inside[0].count("<mi>") <= 1
        return inside[0] if alone else f"<mrow>{''.join(inside)}</mrow>"
    if sign == "√":
        return f"<msqrt>{_element(next(signs), signs)}</msqrt>"
    if sign.startswith('"'):
        return f"<mtext>{escape(sign[1:-1])}</mtext>"
    if sign.isdecimal():
        return f"<mn>{sign}</mn>"
    if sign in "()[]|":
        return f'<mo stretchy="false">{sign}</mo>'
    if (sign.isalpha() and sign != "Σ") or sign == "∞":
        return "".join(f"<mi>{name}</mi>" for name in ([sign] if sign in FUNCTIONS else sign))
    return f"<mo>{escape(OPERATORS.get(sign, sign))}</mo>"


def _scripted(base: str, sign: str, script: str) -> str:
    """The base with a subscript or superscript; a base that already has the other one keeps it."""
    if sign == "^" and base.startswith("<msub>"):
        return f"<msubsup>{base.removeprefix('<msub>').removesuffix('</msub>')}{script}</msubsup>"
    name = "msub" if sign == "_" else "msup"
    return f"<{name}>{base}{script}</{name}>"


def mixed(colour: str, paper: str, share: float) -> str:
    """A colour with the given opacity over a background colour.

    >>> mixed("000000", "ffffff", 0.5)
    '808080'
    """
    pairs = zip(bytes.fromhex(colour), bytes.fromhex(paper), strict=True)
    return "".join(f"{round(share * over + (1 - share) * under):02x}" for over, under in pairs)


def _levels(stops: tuple[str, ...], count: int = 52) -> tuple[str, ...]:
    """Colours between the stops of a scale."""
    colours = [stop.removeprefix("#") for stop in stops]
    places = [divmod(level / (count - 1) * (len(stops) - 1), 1) for level in range(count)]
    return tuple(mixed(colours[min(int(at) + 1, len(stops) - 1)], colours[int(at)], share) for at, share in places)


WEIGHTS, DARK_WEIGHTS = _levels(SCALE), _levels(DARK_SCALE)
LIGHT_INK, DARK_INK = 36, 31  # the levels from which the other ink is easier to read, by WCAG's relative luminance
NEGATIVE, POSITIVE = "2166ac", "e08214"  # blue and orange
LEVELS = 12  # of signed numbers on each side of 0
DEEPEST = 0.6  # opacity of the colour of the largest signed number
BLACK, WHITE = "000000", "ffffff"
DARK = "15171c"  # background of the dark page

# A scale's letter and a level: ("w", 0..51), ("p" or "n", 1..LEVELS), ("h", 0) for masked pairs.
Shade = tuple[str, int]


def shade(value: float, largest: float, scale: Scale) -> Shade | None:
    """The shade of a number, relative to the largest absolute number of its step; None for no colour.

    >>> shade(0.5, 1.0, "weights"), shade(-2.0, 4.0, "signed"), shade(-math.inf, 4.0, "signed")
    (('w', 26), ('n', 6), ('h', 0))
    """
    if value == -math.inf or (value == 0 and scale == "weights"):
        return "h", 0
    if scale == "weights":
        return "w", round(min(max(value, 0.0), 1.0) * (len(WEIGHTS) - 1))
    level = round(LEVELS * abs(value) / largest) if scale == "signed" and largest else 0
    return ("p" if value > 0 else "n", level) if level else None


def weight_colours(level: int, dark: bool = False) -> tuple[str, str]:
    """Background and text colour of a weight."""
    if dark:
        return DARK_WEIGHTS[level], BLACK if level >= DARK_INK else WHITE
    return WEIGHTS[level], WHITE if level >= LIGHT_INK else BLACK


def signed_colours(letter: str, level: int) -> tuple[str, float]:
    """The colour of a signed number and its opacity over the background."""
    return (POSITIVE if letter == "p" else NEGATIVE), DEEPEST * level / LEVELS


@dataclass(frozen=True, eq=False)
class NumberTable:
    """A table of numbers (rows, columns); the single row of one word has no label, and only heads have a title."""

    title: str
    rows: Axis
    columns: Axis
    values: torch.Tensor


@dataclass(frozen=True)
class Gap:
    """A number of rows or columns that are omitted here."""

    count: int


def sections(walk: Walk) -> Iterator[tuple[int, str, list[tuple[str, Step]]]]:
    """The sections of a walkthrough: the number, the title, and the steps with numbers such as "2.1"."""
    for number, (title, steps) in enumerate(groupby(walk.steps, key=lambda step: step.section), start=1):
        yield number, title, [(f"{number}.{place}", step) for place, step in enumerate(steps, start=1)]


def tables(step: Step, brief: bool = False) -> list[NumberTable]:
    """The tables of a step whose value is a tensor: one, or one for each head; `brief`: of the followed word only."""
    assert isinstance(step.value, torch.Tensor)
    axes, values = step.axes, step.value
    if brief and (place := _followed(step)) is not None:
        axes, values = (*axes[:place], *axes[place + 1 :]), values.select(place, axes[place].chosen or 0)
    *heads, rows, columns = axes if len(axes) > 1 else (Axis("", ("",)), *axes)
    values = values.int() if values.dtype == torch.bool else values
    values = values.reshape(-1, len(rows), len(columns))
    titles = heads[0].labels if heads else ("",)
    return [NumberTable(title, rows, columns, matrix) for title, matrix in zip(titles, values, strict=True)]


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
    others = dict.fromkeys(word for step in walk.steps if (word := whose(step)) not in (None, walk.chosen))
    return f" (in the encoder, of {', '.join(f'“{word}”' for word in others)})" if others else ""


def kept(axis: Axis, room: int) -> list[int | Gap]:
    """The indices of an axis that fit: some at both ends and the chosen word, with gaps for the omitted ones.

    >>> kept(Axis("words", tuple("abcdefgh"), chosen=3), 4)
    [0, 1, Gap(count=1), 3, Gap(count=3), 7]
    """
    count, room = len(axis), max(room, 2)
    if count <= room:
        return list(range(count))
    tail = max(room // 3, 1)
    places = {*range(room - tail), *range(count - tail, count)}
    if axis.chosen is not None and axis.chosen not in places:
        places.add(axis.chosen)
        places -= {*range(1, room - tail)} & {room - tail - 1}  # make room for it, but keep the first
    ordered = sorted(places)
    entries: list[int | Gap] = [ordered[0]]
    for before, after in pairwise(ordered):
        entries += [Gap(after - before - 1), after] if after - before > 1 else [after]
    return entries


def largest(step: Step) -> float:
    """The largest absolute finite number of a step, to which colours are relative; 0 if there is none."""
    assert isinstance(step.value, torch.Tensor)
    finite = step.value[step.value.isfinite()].double().abs()
    return float(finite.max()) if finite.numel() else 0.0


def shown(value: float, decimals: int = 3) -> str:
    """A number as it is printed in tables: with so many decimals, or three digits if it is large.

    >>> [shown(x) for x in (0.12345, -1.5, -0.0001, 3, 123456.0, float("-inf"))]
    ['0.123', '−1.500', '0.000', '3', '1.23e+05', '−∞']
    """
    if value == -math.inf:
        return "−∞"
    if isinstance(value, int):
        return str(value).replace("-", "−")
    text = f"{value:z.{decimals}f}" if abs(value) < 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def check_walk(walk: Walk) -> None:
    """Raise an ArgumentError if something is no walkthrough."""
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run return it")


def shown_walk(walk: Walk) -> ShownWalk:
    """A walkthrough as the explorer shows it.

    >>> from regard_lab.walkthrough import walk
    >>> shown_walk(walk("Life is short")).steps[3].line
    'x = F.embedding(ids, table)'
    """
    check_walk(walk)
    steps = tuple(
        ShownStep(
            step.section, step.title, step.says, formula_mathml(step.formula) if step.formula else "", step.line,
            step.axes, step.value, step.scale,
        )
        for step in walk.steps
    )  # fmt: skip
    difference = max((check.difference for check in walk.checks), default=0.0)
    return ShownWalk(steps, walk.words, walk.word, " ".join(walk.notes), len(walk.checks), difference)


MOST_WEIGHTS = 10_000  # numbers of one weight in the JSON of a whole model; a run's file has larger ones


def to_json(walk: Walk) -> str:
    """Write a walkthrough as JSON; minus infinity, which JSON does not have, becomes null.

    >>> from regard_lab.walkthrough import walk
    >>> record = json.loads(to_json(walk("Life is short")))
    >>> record["word"], record["steps"][3]["line"], record["steps"][3]["shape"]
    ({'number': 2, 'text': 'is'}, 'x = F.embedding(ids, table)', [3, 8])
    """
    check_walk(walk)
    record = {
        "words": walk.words,
        "context": walk.context or None,
        "word": {"number": walk.word + 1, "text": walk.chosen},
        "settings": walk.settings,
        "notes": walk.notes,
        "given": [_given(one, walk.brief) for one in walk.given],
        "steps": [_step(step) for step in walk.steps],
        "checks": [vars(check) for check in walk.checks],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character, escaped as JSON does


def _step(step: Step) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in ("section", "name", "title", "says")},
        "formula": formula_text(step.formula),
        "line": step.line,
        "shape": [len(axis) for axis in step.axes],
        "axes": [{"unit": axis.unit, "labels": axis.labels} for axis in step.axes],
        "value": _finite(step.value.tolist() if isinstance(step.value, torch.Tensor) else list(step.value)),
    }


def _given(one: Given, brief: bool) -> dict[str, Any]:
    """A given variable as JSON; objects as their `repr`, and null for many weights of a whole model."""
    record, value = {"name": one.name, "says": one.described}, one.value
    if isinstance(value, torch.Tensor):
        left_out = brief and value.numel() > MOST_WEIGHTS
        return {**record, "shape": list(value.shape), "value": None if left_out else _finite(value.tolist())}
    return {**record, "value": value if isinstance(value, str | list) else repr(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
