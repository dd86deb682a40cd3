"""For tests, benchmarks and users who check a backend of their own; nothing in the library imports this room.

`oracle` answers in float64 NumPy with plain loops and shares no code with regard, `asked` checks what it is given,
`cases` makes tensors whose sizes cannot be confused, `budget` says how far rounding may take an answer.
"""

from regard.testing.answers import Budget, answer, kept_weights
from regard.testing.cases import LAYOUTS, make_qkv
from regard.testing.oracle import Answer

__all__ = ["answer", "Answer", "kept_weights", "make_qkv", "LAYOUTS", "Budget"]
