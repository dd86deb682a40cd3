"""What a walkthrough is made of, the walker that runs its lines, and the walkthrough as JSON.

The lines that are shown are executed, so that the numbers shown are the numbers computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F

from regard.arguments import count_of, of_kind
from regard.bias import ALiBi
from regard.errors import ArgumentError, RegardError
from regard.patterns import parse
from regard.reprs import brief
from regard_lab.lessons.walkthrough.formula import formula_text
from regard_lab.lessons.walkthrough.pasting import Opening
from regard_lab.lessons.walkthrough.words import split_words
from regard_lab.seeing.explorer.records import StepAxis
from regard_lab.text.vocabularies import BEGIN, END

Scale = Literal["none", "signed", "weights"]  # how the numbers of a step are coloured


@dataclass(frozen=True)
class Axis(StepAxis):
    """One axis of a step, as the explorer shows it, and how its indices are counted.

    Args:
        first: the number shown for index 0: words are counted from 1, ids from 0.
    """

    first: int = 1

    def __len__(self) -> int:
        return len(self.labels)


@brief
@dataclass(frozen=True, eq=False)
class Step:
    """One step of a walkthrough: a line of PyTorch, an explanation, and the result.

    Args:
        section: the section that the step belongs to.
        name: the variable that the line assigns.
        title, says: a heading, and one or two sentences of explanation.
        formula: in the notation of `regard_lab.lessons.walkthrough.formula`; empty if there is none.
        line: `name = …`, using variables that were given or assigned before.
        axes: one for each axis of the value.
        value: a tensor, or words.
        scale: how the numbers are coloured: "none", "signed" (around 0) or "weights" (from 0 to 1).
    """

    section: str
    name: str
    title: str
    says: str
    formula: str
    line: str
    axes: tuple[Axis, ...]
    value: torch.Tensor | tuple[str, ...]
    scale: Scale = "signed"

    @property
    def shape(self) -> str:
        """The sizes with their units, such as "6 words × 8 numbers"."""
        return " × ".join(count_of(len(axis), axis.unit) for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Given:
    """A variable that exists before the first line: its name, a description, its value, and what its axes are."""

    name: str
    says: str
    value: Any = field(repr=False)
    axes: str = ""

    @property
    def described(self) -> str:
        """The axes, if they are known, and the description."""
        return f"({self.axes}) {self.says}" if self.axes else self.says


@dataclass(frozen=True)
class Check:
    """Another way to compute a step, and the largest difference between the two results."""

    line: str
    name: str
    difference: float


@brief
@dataclass(frozen=True, eq=False)
class Walk:
    """All steps of attention for one text, from which text, JSON and page are written.

    Args:
        words: the words of the queries, or sub-words of a trained model.
        context: the words of the keys in cross-attention, else empty.
        word: the index, from 0, of the word that is shown in detail.
        settings: the options, by name.
        given: the variables that lines may use besides those that earlier lines assign.
        steps: in the order of execution.
        checks: comparisons of the results with other ways to compute them.
        decimals: of the numbers in text and page; JSON contains all digits.
        brief: text and page show the numbers of the followed word only; JSON contains all.
        notes: what a reader should know before the first step.
        call: how the walkthrough was made.
    """

    words: tuple[str, ...]
    context: tuple[str, ...]
    word: int
    settings: dict[str, Any]
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    decimals: int = 3
    brief: bool = False
    notes: tuple[str, ...] = ()
    call: Opening | None = field(default=None, repr=False)

    @property
    def chosen(self) -> str:
        return self.words[self.word]

    @property
    def described(self) -> str:
        """The options in words, as in "heads: 2, size of vectors: 8"."""
        values = {True: "yes", False: "no"}
        return ", ".join(
            f"{LABELS.get(name, name)}: {values[value] if isinstance(value, bool) else value}"
            for name, value in self.settings.items()
        )

    def names(self) -> dict[str, Any]:
        """Every name that the lines use without assigning it, with its value: the lines run where these are defined.

        >>> from regard_lab.lessons.walkthrough import walk
        >>> steps = walk("Life is short")
        >>> names = steps.names()
        >>> exec(steps.steps[0].line, names)
        >>> names["words"]
        ['Life', 'is', 'short']
        """
        return LANGUAGE | {one.name: one.value for one in self.given}

    def __getitem__(self, name: str) -> Any:
        """The value of a step."""
        values = {step.name: step.value for step in self.steps}
        if name not in values:
            raise ArgumentError(f"this walkthrough has no step {name!r}; there are {', '.join(values)}")
        return values[name]


# The options in words.
LABELS = {
    "kv_heads": "key/value heads", "head": "head shown", "layer": "layer shown", "dim": "size of vectors",
    "query_dim": "size of queries", "key_dim": "size of keys", "value_dim": "size of values",
    "encoder_layers": "encoder layers", "decoder_layers": "decoder layers", "weights_seed": "seed of the weights",
    "draw": "random weights", "given": "given weights", "columns": "vectors as columns", "run": "trained model",
}  # fmt: skip
COUNTING = "Words are counted from 1; heads, layers, ids and the numbers of a vector from 0."


RANDOM_NOTE = (
    "Nothing here is trained: all weights are random numbers. So it means nothing which word gets most weight; "
    "watch how the numbers are calculated."
)  # what a reader has to know first where weights were drawn and not learned


def numbered(unit: str, count: int) -> Axis:
    """An axis whose labels are its indices, from 0."""
    return Axis(unit, tuple(map(str, range(count))))


# The names that every line may use: PyTorch, and a few functions of regard.
LANGUAGE: dict[str, Any] = {
    "torch": torch, "F": F, "math": math, "reduce": reduce, "parse": parse, "split_words": split_words, "ALiBi": ALiBi,
    "BEGIN": BEGIN, "END": END,
}  # fmt: skip
MOST_WEIGHTS = 10_000  # numbers of one weight in the JSON of a whole model; a run's file has larger ones
TOLERANCE = 1e-6  # relative difference up to which two ways to compute a step agree


class Walker:
    """Runs the lines of a walkthrough and records each as a step; a line never contains text of a user."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = dict(LANGUAGE)
        self.given: list[Given] = []
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self.section = ""

    def give(self, name: str, value: Any, says: str, axes: str = "") -> None:
        """Make a value available to later lines."""
        self.values[name] = value
        self.given.append(Given(name, says, value, axes))

    @torch.no_grad()
    def step(
        self,
        line: str,
        title: str,
        says: str | Callable[[torch.Tensor], str],
        formula: str = "",
        *,
        axes: tuple[Axis, ...],
        scale: Scale = "signed",
    ) -> str:
        """Run a line, record its result, and return the name it assigns; `says` may be a function of the result."""
        exec(line, self.values)
        name = line.partition(" = ")[0]
        value = self.values[name]
        says = says if isinstance(says, str) else says(value)
        value = tuple(value) if isinstance(value, list) else value
        self.steps.append(Step(self.section, name, title, says, formula, line, axes, value, scale))
        return name

    @torch.no_grad()
    def check(self, expression: str, name: str) -> None:
        """Compute a step in another way and record the difference.

        Raises:
            RegardError: the results differ by more than rounding.
        """
        other, value = eval(expression, self.values), self.values[name]
        difference = float((other - value).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(value.abs().max())):
            raise RegardError(
                f"{expression} and the step {name} differ by {difference:.1e}; this is a mistake of regard"
            )
        self.checks.append(Check(expression, name, difference))

    def walk(
        self,
        words: Axis,
        context: Axis | None,
        settings: dict[str, Any],
        *,
        call: Opening,
        notes: tuple[str, ...] = (),
        decimals: int = 3,
        brief: bool = False,
    ) -> Walk:
        """The recorded walkthrough."""
        assert words.chosen is not None
        read = () if context is None else context.labels
        records = tuple(self.given), tuple(self.steps), tuple(self.checks)
        return Walk(
            words.labels, read, words.chosen, settings, *records,
            decimals=decimals, brief=brief, notes=(*notes, COUNTING), call=call,
        )  # fmt: skip


def to_json(walk: Walk) -> str:
    """Write a walkthrough as JSON; minus infinity, which JSON does not have, becomes null.

    >>> from regard_lab.lessons.walkthrough import walk
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
