"""Functions that make clauses, whose right answer is that of the oracle, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.testing.conformance.call import (
    Array,
    NeutralCall,
    Reading,
    Results,
    right_results,
)
from regard.testing.conformance.clause import TOLERANCES, Ask, Clause

SUMS = ("q", "k", "v")

# How two results compare bit by bit, as a number.
SAME_BITS = 0.0
WITHIN_ROUNDING = 1.0
OTHER_NUMBERS = 2.0


def compare_bits(first: Array, second: Array) -> Results:
    """Whether two results are equal, differ by rounding alone, or by more."""
    compared = OTHER_NUMBERS
    if first.shape == second.shape and np.allclose(first, second, rtol=1e-5, atol=1e-6):
        compared = SAME_BITS if np.array_equal(first, second) else WITHIN_ROUNDING
    return {"compared": np.array([compared])}


def bits_clause(name: str, sentence: str, call: NeutralCall, ask: Ask) -> Clause:
    """A clause about equal bits, whose `ask` returns what `compare_bits` finds."""
    return clause(
        name,
        sentence,
        call,
        ask=ask,
        right={"compared": np.array([SAME_BITS])},
        tolerance=0.0,
        reason="the same bits",
        alternatives={
            "equal within rounding": lambda call: {"compared": np.array([WITHIN_ROUNDING])}
        },
    )


def clause(name: str, sentence: str, call: NeutralCall, **details: Any) -> Clause:
    """A clause whose right answer is that of the oracle; its group is set by the function that lists it."""
    details.setdefault("tolerance", TOLERANCES[call.dtype])
    if "right" not in details:
        details["right"] = right_results(call)
    return Clause(name, "", sentence, call, **details)


def refusal(name: str, sentence: str, call: NeutralCall, **alternatives: Reading) -> Clause:
    """A clause whose right answer is an error."""
    named = {words.replace("_", " "): read for words, read in alternatives.items()}
    return Clause(name, "", sentence, call, right=None, alternatives=named)
