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
from itertools import pairwise
from typing import Any

import torch

from regard.arguments import of_kind
from regard_lab.seeing.canvas import DARK_SCALE, SCALE
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk
from regard_lab.walkthrough.steps import Axis, Given, Scale, Step, Walk

SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
FENCES = "()[]|"
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

    Raises:
        ValueError: a group is not closed.

    >>> formula_mathml("q_i")
    '<math display="block"><msub><mi>q</mi><mi>i</mi></msub></math>'
    """
    return f'<math display="block">{"".join(_Reader(SIGNS.findall(formula)).items())}</math>'


class _Reader:
    """Parses signs from left to right; `_`, `^` and `/` include the element before them."""

    def __init__(self, signs: list[str]) -> None:
        self.signs, self.place = signs, 0

    def items(self, within: bool = False) -> list[str]:
        elements: list[str] = []
        while self.place < len(self.signs):
            sign = self.signs[self.place]
            if sign == "}" and within:
                self.place += 1
                return elements
            if sign in ("_", "^"):
                self.place += 1
                elements.append(_scripted(elements.pop(), sign, self._atom()))
            elif sign == "/":
                self.place += 1
                elements.append(f"<mfrac>{elements.pop()}{self._atom()}</mfrac>")
            else:
                elements.append(self._atom())
        if within:
            raise ValueError(f"a group of {' '.join(self.signs)} is not closed")
        return elements

    def _atom(self) -> str:
        """The next sign or group as one element."""
        sign = self.signs[self.place]
        self.place += 1
        if sign == "{":
            inside = self.items(within=True)
            alone = len(inside) == 1 and inside[0].count("<mi>") <= 1
            return inside[0] if alone else f"<mrow>{''.join(inside)}</mrow>"
        if sign == "√":
            return f"<msqrt>{self._atom()}</msqrt>"
        if sign.startswith('"'):
            return f"<mtext>{escape(sign[1:-1])}</mtext>"
        if sign.isdecimal():
            return f"<mn>{sign}</mn>"
        if sign in FENCES:
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


def _levels(stops: tuple[str, ...], count: int = 52) -> tuple[str, ...]:
    """Colours between the stops of a scale."""
    parts = [bytes.fromhex(stop.removeprefix("#")) for stop in stops]
    colours = []
    for level in range(count):
        below, share = divmod(level / (count - 1) * (len(parts) - 1), 1)
        low, high = parts[int(below)], parts[min(int(below) + 1, len(parts) - 1)]
        colours.append(
            "".join(f"{round(one + share * (other - one)):02x}" for one, other in zip(low, high, strict=True))
        )
    return tuple(colours)


WEIGHTS, DARK_WEIGHTS = _levels(SCALE), _levels(DARK_SCALE)
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
    """Background and text colour of a weight: the ink that is easier to read on it, by WCAG's relative luminance."""
    colour = (DARK_WEIGHTS if dark else WEIGHTS)[level]
    parts = [part / 3294.6 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in bytes.fromhex(colour)]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
    return colour, WHITE if luminance < 0.179 else BLACK


def signed_colours(letter: str, level: int) -> tuple[str, float]:
    """The colour of a signed number and its opacity over the background."""
    return (POSITIVE if letter == "p" else NEGATIVE), DEEPEST * level / LEVELS


def mixed(colour: str, paper: str, share: float) -> str:
    """A colour with the given opacity over a background colour.

    >>> mixed("000000", "ffffff", 0.5)
    '808080'
    """
    pairs = zip(bytes.fromhex(colour), bytes.fromhex(paper), strict=True)
    return "".join(f"{round(share * over + (1 - share) * under):02x}" for over, under in pairs)


HIDDEN = "−∞"


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


def tables(step: Step, brief: bool = False) -> Iterator[NumberTable]:
    """The tables of a step whose value is a tensor: one, or one for each head; `brief`: of the followed word only."""
    assert isinstance(step.value, torch.Tensor)
    axes, values = _followed(step) if brief else (step.axes, step.value)
    *heads, rows, columns = axes if len(axes) > 1 else (Axis("", ("",)), *axes)
    values = values.int() if values.dtype == torch.bool else values
    values = values.reshape(-1, len(rows), len(columns))
    titles = heads[0].labels if heads else ("",)
    for title, matrix in zip(titles, values, strict=True):
        yield NumberTable(title, rows, columns, matrix)


def whose(step: Step) -> str | None:
    """The word whose numbers a brief table shows; None if it shows those of all words."""
    labels = (axis.labels[axis.chosen] for axis in step.axes if axis.chosen is not None)
    return next(labels, None) if len(step.axes) > 1 else None


def elsewhere(walk: Walk) -> str:
    """What a brief walkthrough shows of another text, such as ` (in the encoder, of “is”)`; empty if there is none."""
    others = dict.fromkeys(word for step in walk.steps if (word := whose(step)) not in (None, walk.chosen))
    return f" (in the encoder, of {', '.join(f'“{word}”' for word in others)})" if others else ""


def _followed(step: Step) -> tuple[tuple[Axis, ...], torch.Tensor]:
    """The axes and numbers of a step for the followed word: that of the queries, or of the keys if it has no other."""
    assert isinstance(step.value, torch.Tensor)
    for place, axis in enumerate(step.axes):
        if axis.chosen is not None and len(step.axes) > 1:
            return (*step.axes[:place], *step.axes[place + 1 :]), step.value.select(place, axis.chosen)
    return step.axes, step.value


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
    if value == -torch.inf:
        return HIDDEN
    text = (
        str(int(value)) if isinstance(value, int) else f"{value:.{decimals}f}" if abs(value) < 1000 else f"{value:.3g}"
    )
    text = text.removeprefix("-") if not text.strip("-0.") else text  # no minus zero
    return text.replace("-", "−") if "e-" not in text else text


def shown_walk(walk: Walk) -> ShownWalk:
    """A walkthrough as the explorer shows it.

    >>> from regard_lab.walkthrough import walk
    >>> shown_walk(walk("Life is short")).steps[3].line
    'x = F.embedding(ids, table)'
    """
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run return it")
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
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run return it")
    record = {
        "words": walk.words,
        "context": walk.context or None,
        "word": {"number": walk.word + 1, "text": walk.chosen},
        "settings": walk.settings,
        "notes": walk.notes,
        "given": [_given(one, MOST_WEIGHTS if walk.brief else None) for one in walk.given],
        "steps": [_step(step) for step in walk.steps],
        "checks": [{"line": one.line, "name": one.name, "difference": one.difference} for one in walk.checks],
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character, escaped as JSON does


def _step(step: Step) -> dict[str, Any]:
    return {
        "section": step.section,
        "name": step.name,
        "title": step.title,
        "says": step.says,
        "formula": formula_text(step.formula),
        "line": step.line,
        "shape": [len(axis) for axis in step.axes],
        "axes": [{"unit": axis.unit, "labels": axis.labels} for axis in step.axes],
        "value": _finite(step.value.tolist() if isinstance(step.value, torch.Tensor) else list(step.value)),
    }


def _given(one: Given, most: int | None) -> dict[str, Any]:
    """A given variable as JSON; objects as their `repr`, and null for weights of more than `most` numbers."""
    record, value = {"name": one.name, "says": one.described}, one.value
    if isinstance(value, torch.Tensor):
        left_out = most is not None and value.numel() > most
        return {**record, "shape": list(value.shape), "value": None if left_out else _finite(value.tolist())}
    return {**record, "value": value if isinstance(value, str | list) else repr(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
