"""Which combinations of a test's parameters the fast suite runs: enough that each value of each parameter occurs.

A test with several `parametrize` runs their whole product. `@pytest.mark.each_value` leaves a few combinations in the
fast suite and marks the others `slow`, so that the long tier runs them. Each entry of each `parametrize` stays in the
fast suite at least once. Where the code treats a pair of values specially, all combinations of these two parameters
stay: `@pytest.mark.each_value(pairs=[("dtype", "layout")])`. With `apart=True` each parameter counts by itself, also
those that one `parametrize` lists together.
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any

import pytest

Parts = frozenset[Hashable]


def chosen(cases: Sequence[Parts]) -> list[int]:
    """The numbers of cases that hold every part of all cases.

    The rule: the next case is the one with the most parts that no chosen case has. Of several such cases it is the one
    whose parts were chosen least often so far, and of these the first. So the values of one parameter take turns beside
    those of another, and the same cases are chosen on every machine.
    """
    wanted = frozenset().union(*cases)
    met: Counter[Hashable] = Counter()
    numbers: list[int] = []
    while not numbers or not wanted <= met.keys():

        def promise(number: int) -> tuple[int, int]:
            new = sum(part not in met for part in cases[number])
            return new, -sum(met[part] for part in cases[number])

        best = max(range(len(cases)), key=promise)  # the first of equal ones
        numbers.append(best)
        met.update(cases[best])
    return sorted(numbers)


def parts_of(item: pytest.Function, pairs: Sequence[Sequence[str]], apart: bool) -> Parts:
    """The entry of each `parametrize` that a combination holds, or the value of each parameter; and its pairs."""
    params = item.callspec.params
    alone = [(name,) for name in params]
    together = [names_of(mark) for mark in item.iter_markers("parametrize")]
    listed = {name for names in together for name in names}
    # Parameters of fixtures stand in no `parametrize`.
    together += [(name,) for name in params if name not in listed]
    # By identity: values may have no hash, and those of one list are the same objects in every combination.
    return frozenset(
        tuple((name, id(params[name])) for name in names)
        for names in (*(alone if apart else together), *pairs)
    )


def names_of(mark: pytest.Mark) -> tuple[str, ...]:
    """The parameters of one `parametrize`."""
    names = mark.args[0]
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names


def mark_repetitions(items: Iterable[pytest.Item]) -> None:
    """Mark `slow` what `each_value` leaves out. A combination that is slow by itself counts for no value."""
    tests: dict[Hashable, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("each_value"):
            if not item.get_closest_marker("slow"):
                tests.setdefault((item.parent, item.originalname), []).append(item)
    for combined in tests.values():
        mark = combined[0].get_closest_marker("each_value")
        options = {"pairs": [], "apart": False, **(mark.kwargs if mark else {})}
        kept = {*chosen([parts_of(item, **options) for item in combined])}
        for number, item in enumerate(combined):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def slow_except(values: Iterable[object], fast: Container[object]) -> list[Any]:
    """Values for `parametrize` of which those in `fast` are in the fast suite, and the others are slow."""
    return [
        pytest.param(value, marks=() if value in fast else pytest.mark.slow) for value in values
    ]
