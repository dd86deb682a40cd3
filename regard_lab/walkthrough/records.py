"""A walkthrough as JSON and for the explorer, and its formulas as text and MathML."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import of_kind
from regard_lab.seeing.explorer.records import ShownStep, ShownWalk
from regard_lab.walkthrough.steps import A_WALK, Given, Step, Walk

SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
OPERATORS = {"Σ": "∑", "-": "−"}
JOINED = {"_": "msub", "^": "msup", "/": "mfrac"}
FUNCTIONS = {"norm", "exp", "tanh", "sin", "cos", "relu", "gelu", "silu"}  # names of several letters; "ij" is i and j


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
        return ["mi", sign] if len(sign) == 1 or sign in FUNCTIONS else ["mrow", *(["mi", one] for one in sign)]
    return ["mo", OPERATORS.get(sign, sign)]


def shown_walk(walk: Walk) -> ShownWalk:
    """A walkthrough as the explorer shows it.

    >>> from regard_lab.walkthrough import walk
    >>> shown_walk(walk("Life is short")).steps[3].line
    'x = F.embedding(ids, table)'
    """
    of_kind("walk", walk, Walk, A_WALK)
    steps = tuple(
        ShownStep(one.section, one.title, one.says, formula_elements(one.formula) if one.formula else None, one.line,
                  one.axes, one.value, one.scale)
        for one in walk.steps
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
    of_kind("walk", walk, Walk, A_WALK)
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
