"""A conformance suite for attention: clauses that any function can be asked, with the right answers by an oracle.

Each clause of `CLAUSES` is one sentence of the contract with the call that asks for it. `judge` asks a library, through
an adapter from a neutral `Call` to its own words, and tells whether it answers as the contract, by another reading that
has a name, with other numbers, NaN or an error. `Torch` asks a function of your own.
"""

from regard.testing.conformance.call import Call, CannotAskError
from regard.testing.conformance.clause import STATUSES, Clause, Verdict, judge
from regard.testing.conformance.clauses import CLAUSES, GROUPS
from regard.testing.conformance.libraries import LIBRARIES, Torch, attend_with_numpy

__all__ = [
    "CLAUSES",
    "GROUPS",
    "STATUSES",
    "LIBRARIES",
    "Call",
    "Clause",
    "Verdict",
    "Torch",
    "CannotAskError",
    "judge",
    "attend_with_numpy",
]
