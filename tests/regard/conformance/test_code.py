"""A call as code: pasted, it is the call of the clause."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from regard.testing.conformance import CLAUSES, attend_with_numpy, judge
from regard.testing.conformance.code import IMPORTS, asking_as_code, call_as_code
from regard.testing.conformance.report import cells, how_to_ask
from regard.testing.conformance.running import Column


def evaluated(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(IMPORTS, names)
    return eval(code, names)


def is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        same = isinstance(second, np.ndarray) and first.dtype == second.dtype
        return same and np.array_equal(first, second, equal_nan=first.dtype != bool)
    if isinstance(first, tuple) and first and isinstance(first[0], np.ndarray):
        return all(map(is_equal, first, second))
    return first == second


def test_the_code_of_every_call_makes_that_call() -> None:
    taken_from_clauses = 0
    for name, clause in CLAUSES.items():
        code = call_as_code(name, clause.call)
        made = evaluated(code)
        for field in fields(clause.call):
            wanted = getattr(clause.call, field.name)
            assert is_equal(wanted, getattr(made, field.name)), (name, field.name, code)
        taken_from_clauses += "CLAUSES" in code
    assert taken_from_clauses < 20  # most arrays are code of their own


def test_the_program_of_the_page_runs_and_prints_the_reading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exec(how_to_ask(), {})
    printed = capsys.readouterr().out
    assert "alternative" in printed
    assert "aligned first with first" in printed


def test_a_program_asks_the_library_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    exec(asking_as_code("empty-all", CLAUSES["empty-all"].call, "regard:reference"), {})
    assert "agrees" in capsys.readouterr().out


def test_cells_hold_the_answer_and_the_error_of_each_clause() -> None:
    names = ("one-head", "fewer-values", "sink")
    replies = {name: judge(CLAUSES[name], attend_with_numpy) for name in names}
    shown = cells([Column("sdpa", "a version", replies)])
    answers = shown["libraries"]["sdpa"]["answers"]
    assert answers["one-head"] == f"{replies['one-head'].error:.1e}"
    assert answers["fewer-values"].startswith("as the contract: ")
    assert set(shown["clauses"]) == set(CLAUSES)
    assert "with_numbers" in shown["imports"]
