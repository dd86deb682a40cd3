"""A conformance suite for attention: small calls for any implementation, with the right answers of an oracle.

Each clause of `CLAUSES` is one sentence of the contract with a `NeutralCall`, which belongs to no library. An adapter
translates the call into the arguments of one implementation. `judge` compares the results with the contract, and with
other definitions that libraries follow on purpose, each of which has a name. `Torch` adapts a function of your own.
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
