"""How scores become weights: hashable declarations that a plan can carry; modules hold whatever they learn.

`Softmax` over scaled dot products is the mechanism that every pattern and option was made for.
"""

from regard.mechanisms.softmax import Mechanism, ScaledDot, Softmax

__all__ = ["Mechanism", "Softmax", "ScaledDot"]
