"""How alike a query and a key are: the scores that a softmax turns into weights.

`base` says what every score declares, `dots`, `tanh_sums` and `local` are those of the papers, `pairs` what is left
of them for the pairs.
"""

from regard.mechanisms.scores.base import Score
from regard.mechanisms.scores.dots import Dot, General, ScaledDot
from regard.mechanisms.scores.local import LocalPredictive
from regard.mechanisms.scores.tanh_sums import Additive, Concat

__all__ = ["Score", "ScaledDot", "Dot", "General", "Additive", "Concat", "LocalPredictive"]
