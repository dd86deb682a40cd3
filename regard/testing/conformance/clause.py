"""A clause of the contract, and what a library answers to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from regard.reprs import brief
from regard.testing.conformance.call import Array, CannotAskError, NeutralCall, Reading, Results

Attend = Callable[[NeutralCall], Results]  # a library, as its adapter asks it
Ask = Callable[[Attend, NeutralCall], Results]
Status = Literal[
    "agrees", "alternative", "differs", "not finite", "accepted", "refused", "crashed", "no word"
]
# What each status means, in the order of tables.
STATUSES: dict[Status, str] = {
    "agrees": "as the contract",
    "alternative": "another reading, which has a name",
    "differs": "other numbers",
    "not finite": "NaN or infinity where the contract has numbers",
    "accepted": "computed, where the contract refuses",
    "refused": "an error, where the contract has an answer",
    "crashed": "the process ended",
    "no word": "the interface cannot ask it",
}
# Relative to 1 + the largest right number; rounding of sums of a few dozen products.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def ask_once(attend: Attend, call: NeutralCall) -> Results:
    return attend(call)


@brief
@dataclass(frozen=True)
class Clause:
    """One sentence of the contract, and how it is asked.

    Args:
        name: short, unique: "causal-fewer-queries".
        group: the section of a table that it stands in.
        sentence: what holds.
        call: the call that asks for it.
        right: the right results; by default those of the oracle. None where the right answer is an error.
        ask: a function that asks the library, where one call is not enough.
        tolerance: the largest error, relative to 1 + the largest right number.
        reason: why the tolerance is not the usual one of the dtype.
        alternatives: other readings that a library may have, by their names.
    """

    name: str
    group: str
    sentence: str
    call: NeutralCall
    right: Results | None
    ask: Ask = ask_once
    tolerance: float = TOLERANCES["float32"]
    reason: str = "rounding of the dtype"
    alternatives: Mapping[str, Reading] = field(default_factory=dict)

    @property
    def is_refusal(self) -> bool:
        return self.right is None


@brief
@dataclass(frozen=True)
class Reply:
    """What a library answered to a clause: a status, its detail, and the largest error if numbers were compared."""

    clause: str
    status: Status
    detail: str = ""
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        error = self.error if self.error is None or math.isfinite(self.error) else None
        return {
            "clause": self.clause,
            "status": self.status,
            "detail": self.detail,
            "error": error,
        }


def judge(clause: Clause, attend: Attend) -> Reply:
    """Ask a library for a clause, and compare its answer with the contract and with the named readings.

    >>> from regard.testing.conformance import CLAUSES, attend_with_numpy
    >>> judge(CLAUSES["causal-square"], attend_with_numpy).status
    'agrees'
    """
    try:
        with np.errstate(all="ignore"):
            results = clause.ask(attend, clause.call)
    except CannotAskError as error:
        return Reply(clause.name, "no word", str(error))
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Reply(clause.name, "agrees" if clause.is_refusal else "refused", sentence)

    for name, read in clause.alternatives.items():
        if clause.right is None and _fits(results, read(clause.call), clause.tolerance):
            return Reply(clause.name, "accepted", name)
    if clause.right is None:
        return Reply(clause.name, "accepted")
    error = largest_error(results, clause.right)
    if error <= clause.tolerance:
        return Reply(clause.name, "agrees", error=error)
    for name, read in clause.alternatives.items():
        if _fits(results, read(clause.call), clause.tolerance):
            return Reply(clause.name, "alternative", name, error)
    is_finite = all(np.isfinite(x).all() for x in results.values())
    return Reply(clause.name, "differs" if is_finite else "not finite", error=error)


def _fits(results: Results, expected: Results, tolerance: float) -> bool:
    return largest_error(results, expected) <= tolerance


def largest_error(results: Results, expected: Results) -> float:
    """The largest error of all results, relative to 1 + the largest expected number; infinite where NaN, infinity or
    the shape differ."""
    return max((_error(results.get(name), x) for name, x in expected.items()), default=0.0)


def _error(result: Array | None, expected: Array) -> float:
    if result is None or result.shape != expected.shape:
        return math.inf
    result = np.asarray(result, dtype=np.float64)
    finite = np.isfinite(expected)
    same_kind = np.where(finite, np.isfinite(result), _kind(result) == _kind(expected))
    if not same_kind.all():
        return math.inf
    if not finite.any():
        return 0.0
    size = 1 + float(np.abs(expected[finite]).max())
    return float(np.abs(result[finite] - expected[finite]).max()) / size


def _kind(x: Array) -> Array:
    """1 and -1 for infinities, 2 for NaN, 0 for numbers."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))
