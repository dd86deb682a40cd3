"""How alike a query and a key are: the scores that a softmax turns into weights.

`base` says what every score declares and holds the formulas of pairs that backends compute; `published` has the scores
of the papers.
"""

from regard.mechanisms.scores.base import Score
from regard.mechanisms.scores.published import Additive, Concat, Dot, General, LocalPredictive, ScaledDot

__all__ = ["Score", "ScaledDot", "Dot", "General", "Additive", "Concat", "LocalPredictive"]
