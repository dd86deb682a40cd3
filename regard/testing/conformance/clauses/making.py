"""How a clause is written: its right answer is that of the oracle, or an error."""

from __future__ import annotations

from typing import Any

from regard.testing.conformance.call import (
    NeutralCall,
    Reading,
    right_results,
)
from regard.testing.conformance.clause import TOLERANCES, Clause

SUMS = ("q", "k", "v")


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
