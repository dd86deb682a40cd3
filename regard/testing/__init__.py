"""Tools for testing a backend: reference answers, test tensors and error budgets. The library never imports them.

`answer` computes attention in float64 NumPy, head by head, and shares no code with regard. `make_qkv` makes tensors
whose sizes all differ. `Budget` bounds the rounding error that a result may have.
"""

from regard.testing.budget import Budget
from regard.testing.cases import make_qkv
from regard.testing.oracle import Answer, answer

__all__ = [
    "answer",
    "Answer",
    "make_qkv",
    "Budget",
]
