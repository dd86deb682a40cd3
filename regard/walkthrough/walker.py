"""Runs the lines that a walk shows, so that what is read is what was computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from regard.bias import ALiBi
from regard.errors import RegardError
from regard.patterns import parse
from regard.text.vocabularies import BEGIN, END
from regard.walkthrough.steps import Axis, Check, Given, Scale, Step, Walk
from regard.walkthrough.words import split_words

# What every line may use without being given it: PyTorch, and a few words of regard.
LANGUAGE: dict[str, Any] = {
    "torch": torch, "F": F, "math": math, "reduce": reduce, "parse": parse, "split_words": split_words, "ALiBi": ALiBi,
    "BEGIN": BEGIN, "END": END,
}  # fmt: skip
TOLERANCE = 1e-6  # that every number keeps to, beside another way to compute it


class Walker:
    """Goes step by step. A line is made of our own words and of numbers; no text of a user is ever part of one."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = dict(LANGUAGE)
        self.given: list[Given] = []
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self.section = ""

    def give(self, name: str, value: Any, says: str) -> None:
        """Let later lines use a value."""
        self.values[name] = value
        self.given.append(Given(name, says, value))

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
        """Run a line, keep what it assigns to, and return that name; `says` may be a function of what came out."""
        exec(line, self.values)
        name = line.partition(" = ")[0]
        value = self.values[name]
        says = says if isinstance(says, str) else says(value)
        value = tuple(value) if isinstance(value, list) else value
        self.steps.append(Step(self.section, name, title, says, formula, line, axes, value, scale))
        return name

    @torch.no_grad()
    def check(self, expression: str, name: str) -> None:
        """Compute a step in another way.

        Raises:
            RegardError: the two differ by more than rounding.
        """
        other, value = eval(expression, self.values), self.values[name]
        difference = float((other - value).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(value.abs().max())):
            raise RegardError(
                f"{expression} and the step {name} differ by {difference:.1e}; this is a mistake of regard"
            )
        self.checks.append(Check(expression, name, difference))

    def walk(self, words: Axis, context: Axis | None, settings: dict[str, Any]) -> Walk:
        """All that was done, as it is shown."""
        assert words.chosen is not None
        read = () if context is None else context.labels
        return Walk(
            words.labels, read, words.chosen, settings, tuple(self.given), tuple(self.steps), tuple(self.checks)
        )
