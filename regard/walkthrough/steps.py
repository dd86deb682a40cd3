"""What a walk is made of: steps whose lines really ran, what they were given, and what their end was compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from regard.errors import ArgumentError

Scale = Literal["none", "signed", "weights"]  # how the numbers of a step are coloured


@dataclass(frozen=True)
class Axis:
    """One axis of a step: what it counts, the label of each place, the place of the chosen word, and the number of the
    first: words are counted from 1, ids from 0."""

    unit: str
    labels: tuple[str, ...]
    chosen: int | None = None
    first: int = 1

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Step:
    """One line of PyTorch, what it means, and what came out.

    Args:
        section: the part of the walk that it belongs to.
        name: what the line assigns to.
        title, says: a heading, and one or two sentences that explain.
        formula: in the notation of `regard.walkthrough.formula`; empty where there is none.
        line: `name = …`, of names that were given or assigned before.
        axes: one for each axis of the value.
        value: a tensor, or words.
        scale: how its numbers are coloured: "none", "signed" (around 0) or "weights" (from 0 to 1).
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
        """The sizes with what they count: "6 words × 8 numbers"."""
        return " × ".join(counted(len(axis), axis.unit) for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Given:
    """What the lines start from: a name, where it comes from, and its value."""

    name: str
    says: str
    value: Any = field(repr=False)


@dataclass(frozen=True)
class Check:
    """Another way to compute a step, and the largest difference that was found."""

    line: str
    name: str
    difference: float


@dataclass(frozen=True, eq=False)
class Walk:
    """The way of a text through attention, for terminal, JSON and page alike.

    Args:
        words: what looks, each a word or a run's sub-word.
        context: what is looked at in cross-attention, else empty.
        word: the place, from 0, of the word that is followed alone.
        settings: what was chosen, by name.
        given: the names that lines may use beside those that earlier lines assign.
        steps: in the order in which they ran.
        checks: what the end was compared with.
    """

    words: tuple[str, ...]
    context: tuple[str, ...]
    word: int
    settings: dict[str, Any]
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]

    @property
    def chosen(self) -> str:
        return self.words[self.word]

    def __getitem__(self, name: str) -> Any:
        """The value of a step."""
        values = {step.name: step.value for step in self.steps}
        if name not in values:
            raise ArgumentError(f"no step of this walk is called {name!r}; there are {', '.join(values)}")
        return values[name]


def counted(count: int, unit: str) -> str:
    """A number of things.

    >>> counted(1, "words"), counted(6, "words")
    ('1 word', '6 words')
    """
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def numbered(unit: str, count: int) -> Axis:
    """An axis whose places have numbers alone, from 0 as in code."""
    return Axis(unit, tuple(map(str, range(count))))
