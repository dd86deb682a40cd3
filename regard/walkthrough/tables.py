"""A step as tables of numbers, and which of their rows and columns fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from regard.walkthrough.steps import Axis, Step

HIDDEN = "−∞"


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers (rows, columns); a single row of one word has no label, and only the tables of heads have a title."""

    title: str
    rows: Axis
    columns: Axis
    values: torch.Tensor


@dataclass(frozen=True)
class Gap:
    """Rows or columns that are left out here."""

    count: int


def tables(step: Step) -> Iterator[Table]:
    """The tables of a step of numbers: one, or one for each head."""
    assert isinstance(step.value, torch.Tensor)
    *heads, rows, columns = step.axes if len(step.axes) > 1 else (Axis("", ("",)), *step.axes)
    values = step.value.int() if step.value.dtype == torch.bool else step.value
    values = values.reshape(-1, len(rows), len(columns))
    titles = heads[0].labels if heads else ("",)
    for title, matrix in zip(titles, values, strict=True):
        yield Table(title, rows, columns, matrix)


def kept(axis: Axis, room: int) -> list[int | Gap]:
    """The places of an axis for which there is room: from both ends, and the chosen word; gaps say how many miss.

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
        places -= {*range(1, room - tail)} & {room - tail - 1}  # in whose stead; the first one stays
    ordered = sorted(places)
    found: list[int | Gap] = [ordered[0]]
    for before, after in pairwise(ordered):
        found += [Gap(after - before - 1), after] if after - before > 1 else [after]
    return found


def largest(step: Step) -> float:
    """The largest absolute number of a step, which its colours are measured by; 0 where there is none."""
    assert isinstance(step.value, torch.Tensor)
    finite = step.value[step.value.isfinite()].double().abs()
    return float(finite.max()) if finite.numel() else 0.0


def shown(value: float) -> str:
    """A number as tables have it: three decimals, or three digits where it is large.

    >>> [shown(x) for x in (0.12345, -1.5, -0.0001, 3, 123456.0, float("-inf"))]
    ['0.123', '−1.500', '0.000', '3', '1.23e+05', '−∞']
    """
    if value == -torch.inf:
        return HIDDEN
    text = str(int(value)) if isinstance(value, int) else f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
    return text.replace("-0.000", "0.000").replace("-", "−") if "e-" not in text else text
