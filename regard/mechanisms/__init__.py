"""How queries, keys and values become outputs: hashable declarations that a plan can carry.

Each says what it may be combined with; what it learned is handed to a call as `parameters=` and lives in modules.
"""

from regard.mechanisms.base import Mechanism
from regard.mechanisms.scores import Dot, ScaledDot, Score
from regard.mechanisms.softmax import Softmax

__all__ = ["Mechanism", "Softmax", "Score", "ScaledDot", "Dot"]
