"""A call as code to paste: NumPy arrays by how they were drawn, and the options that are not the default ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from regard.testing.conformance.call import Array, NeutralCall
from regard.testing.conformance.drawing import draw, drawn_mask

# What stands above every call.
IMPORTS = """\
import numpy as np
from numpy import inf, nan

from regard.testing.conformance import CLAUSES, IMPLEMENTATIONS, NeutralCall, judge
from regard.testing.conformance.drawing import draw, drawn_mask, with_numbers
"""
SEEDS = range(1, 11)
FEW = 9  # numbers that are written out


def call_as_code(name: str, call: NeutralCall) -> str:
    """The expression of a clause's call; arrays that are neither drawn nor small are taken from the clause.

    >>> from regard.testing.conformance import CLAUSES
    >>> print(call_as_code("causal-square", CLAUSES["causal-square"].call))
    NeutralCall(
        q=draw(2, 3, 7, 32, seed=1),
        k=draw(2, 3, 7, 32, seed=2),
        v=draw(2, 3, 7, 32, seed=3),
        causal=True,
    )
    """
    arguments = []
    for field in fields(NeutralCall):
        value = getattr(call, field.name)
        if isinstance(value, np.ndarray):
            place = f'CLAUSES["{name}"].call.{field.name}'
            arguments.append((field.name, _array_as_code(value, call.dtype) or place))
        elif field.name == "directions" and value is not None:
            drawn = [f"        {_array_as_code(x, call.dtype)}," for x in value]
            arguments.append((field.name, "\n".join(["(", *drawn, "    )"])))
        elif value != field.default:
            arguments.append((field.name, _as_formatted(value)))
    lines = [f"    {argument}={code}," for argument, code in arguments]
    return "\n".join(["NeutralCall(", *lines, ")"])


def asking_as_code(name: str, call: NeutralCall, library: str) -> str:
    """A program that asks a library for a clause, and prints its results and its reply to the clause."""
    return f"""\
{IMPORTS}
call = {call_as_code(name, call)}
attend = IMPLEMENTATIONS["{library}"].new()
print(attend(call))
print(judge(CLAUSES["{name}"], attend))
"""


def _array_as_code(x: Array, dtype: str) -> str | None:
    if x.size > 0:
        first = x.flat[0]
        if np.array_equal(x, np.full(x.shape, first), equal_nan=x.dtype != bool):
            return f"np.full({x.shape}, {_as_formatted(first.item())})"
    for drawn, code in _recipes(x, dtype):
        changed = _changed_place(x, drawn)
        if changed == "":
            return code
        if changed is not None:
            return f"with_numbers({code}, {changed})"
    if x.size <= FEW:
        return f"np.array({_as_formatted(x.tolist())})"
    return None


def _recipes(x: Array, dtype: str) -> Iterator[tuple[Array, str]]:
    """Arrays of the same shape that x may come from, with their code."""
    shape = ", ".join(str(size) for size in x.shape)
    if x.dtype == bool:
        yield drawn_mask(*x.shape), f"drawn_mask({shape})"
        yield np.ones(x.shape, dtype=bool), f"np.full({x.shape}, True)"
        return
    for seed in SEEDS:
        in_which = "" if dtype == "float32" else f', dtype="{dtype}"'
        yield draw(*x.shape, seed=seed, dtype=dtype), f"draw({shape}, seed={seed}{in_which})"
        if in_which:
            yield draw(*x.shape, seed=seed), f"draw({shape}, seed={seed})"
    yield np.zeros(x.shape), f"np.full({x.shape}, 0.0)"
    yield drawn_mask(*x.shape).astype(float), f"drawn_mask({shape}).astype(float)"


def _changed_place(x: Array, drawn: Array) -> str | None:
    """The box of places in which x holds one number of its own, and that number, as code.

    "" if x is the drawn array, None if the places that differ are no such box.
    """
    if x.dtype == bool:
        changed = x != drawn
    else:
        changed = ~((x == drawn) | (np.isnan(x) & np.isnan(drawn)))
    if not changed.any():
        return ""
    box = []
    for size, places in zip(x.shape, np.nonzero(changed), strict=True):
        box.append(slice(int(places.min()), int(places.max()) + 1))
        if box[-1] == slice(0, size):
            box[-1] = slice(None)
    inside = x[tuple(box)]
    number = inside.flat[0]
    if not np.array_equal(inside, np.full(inside.shape, number), equal_nan=x.dtype != bool):
        return None
    places = ", ".join(_slice_as_code(part) for part in box)
    return f"np.s_[{places}], {_as_formatted(number.item())}"


def _as_formatted(value: Any) -> str:
    """A value as the formatter writes it: 1e30 and "text", not 1e+30 and 'text'."""
    return repr(value).replace("e+", "e").replace("'", '"')


def _slice_as_code(part: slice) -> str:
    if part.start is None:
        return ":"
    if part.stop == part.start + 1:
        return str(part.start)
    return f"{part.start}:{part.stop}"
