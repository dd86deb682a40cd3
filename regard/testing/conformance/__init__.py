"""A conformance suite for attention: clauses that any function can be asked, with the right answers by an oracle.

Each clause of `CLAUSES` is one sentence of the contract with a `NeutralCall`, which names no library. `judge` asks an
implementation, through an adapter to its own words, and says whether it answers as the contract, by another reading
that has a name, with other numbers, NaN or an error. `Torch` asks a function of your own.
"""

from regard.testing.conformance.adapters.tensors import Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall
from regard.testing.conformance.clause import STATUSES, Clause, Reply, judge
from regard.testing.conformance.clauses import CLAUSES, GROUPS
from regard.testing.conformance.implementations import IMPLEMENTATIONS, attend_with_numpy

__all__ = [
    "CLAUSES",
    "GROUPS",
    "STATUSES",
    "IMPLEMENTATIONS",
    "NeutralCall",
    "Clause",
    "Reply",
    "Torch",
    "CannotAskError",
    "judge",
    "attend_with_numpy",
]
