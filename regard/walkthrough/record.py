"""A walk as JSON: every number in full, and what they were made from."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from regard.kinds import of_kind
from regard.walkthrough.formula import formula_text
from regard.walkthrough.steps import Step, Walk


def to_json(walk: Walk) -> str:
    """The walk as JSON; minus infinity, which JSON does not have, is null.

    >>> from regard.walkthrough import walk
    >>> record = json.loads(to_json(walk("Life is short")))
    >>> record["word"], record["steps"][3]["line"], record["steps"][3]["shape"]
    ({'number': 2, 'text': 'is'}, 'x = F.embedding(ids, table)', [3, 8])
    """
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run give it")
    record = {
        "words": walk.words,
        "context": walk.context or None,
        "word": {"number": walk.word + 1, "text": walk.chosen},
        "settings": walk.settings,
        "given": [_given(one.name, one.says, one.value) for one in walk.given],
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


def _given(name: str, says: str, value: Any) -> dict[str, Any]:
    """A value that the lines start from; of modules and other objects, what they are."""
    if isinstance(value, torch.Tensor):
        return {"name": name, "says": says, "shape": list(value.shape), "value": _finite(value.tolist())}
    return {"name": name, "says": says, "value": value if isinstance(value, str | list) else repr(value)}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
