"""A walkthrough as JSON, and its formulas as text."""

import json
import math
from typing import Any

import torch

from regard.arguments import of_kind
from regard_lab.walkthrough.steps import A_WALK, Given, Step, Walk


def formula_text(formula: str) -> str:
    """The formula as plain text.

    >>> formula_text("ω_{ij} = {q_i · k_j}/{√{d}}")
    'ω_ij = q_i · k_j / √d'
    """
    return formula.replace("}/{", "} / {").translate(str.maketrans("", "", '{}"'))


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
        "given": [_given(one) for one in walk.given],
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


def _given(one: Given) -> dict[str, Any]:
    """A given variable as JSON; a layer as its `repr`."""
    record, value = {"name": one.name, "says": one.described}, one.value
    if isinstance(value, torch.Tensor):
        return {**record, "shape": list(value.shape), "value": _finite(value.tolist())}
    return {**record, "value": value if isinstance(value, str | list) else repr(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
