"""Which cells are compared: a sample in which every two choices occur together, or the whole product."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from cell_options import OPTIONS
from cell_patterns import PATTERNS
from cells import DIMS, DTYPES, HEADS, LENGTHS, READING
from comparing import Cell

from regard.testing import LAYOUTS

AXES: dict[str, tuple[Any, ...]] = {  # beside pattern and option
    "heads": tuple(HEADS.values()),
    "lengths": LENGTHS,
    "layout": LAYOUTS,
    "dims": DIMS,
    "dtype": DTYPES,  # with gradients
    "reading": READING,  # without
}
TRIED = 8  # candidates for a place in the sample


def pairs(choices: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Every two choices that occur together."""
    return set(itertools.combinations(choices.items(), 2))


def every_pair() -> set[tuple[Any, ...]]:
    axes = {"pattern": tuple(PATTERNS), "option": tuple(OPTIONS), **AXES}
    return {
        ((one, a), (other, b))
        for one, other in itertools.combinations(axes, 2)
        for a, b in itertools.product(axes[one], axes[other])
    }


def sample() -> list[dict[str, Any]]:
    """Each pattern with each option once, the rest chosen so that most pairs are new."""
    draw, missing, found = random.Random(0), every_pair(), []
    for pattern, option in itertools.product(PATTERNS, OPTIONS):
        tried = [
            {"pattern": pattern, "option": option, **{axis: draw.choice(all_) for axis, all_ in AXES.items()}}
            for _ in range(TRIED)
        ]
        best = max(tried, key=lambda choices: len(pairs(choices) & missing))
        missing -= pairs(best)
        found.append(best)
    return found


def whole(lengths: tuple[int, int], dtype: Any) -> Iterator[dict[str, Any]]:
    """Every pattern, option and head layout for these lengths and this dtype; the rest takes turns."""
    draw = random.Random(f"{lengths} {dtype}")
    readings = [reading for reading in READING if reading[0] == dtype]
    for pattern, option, heads in itertools.product(PATTERNS, OPTIONS, HEADS.values()):
        yield {
            "pattern": pattern, "option": option, "heads": heads, "lengths": lengths, "dtype": dtype,
            "layout": draw.choice(LAYOUTS), "dims": draw.choice(DIMS), "reading": draw.choice(readings),
        }  # fmt: skip


def cells_of(choices: dict[str, Any], seed: int) -> tuple[Cell, Cell]:
    """One with gradients and one without."""
    (dtype, storage), rest = choices["reading"], {k: v for k, v in choices.items() if k != "reading"}
    reading = {**rest, "dtype": dtype, "learning": False, "storage": storage}
    return Cell(**rest, seed=seed), Cell(**reading, seed=seed + 1)
