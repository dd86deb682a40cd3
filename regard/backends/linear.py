"""The linear backend: mechanisms of features and recurrent ones by plain operations, in time linear in the length."""

from __future__ import annotations

from functools import partial

from regard.backends import kernelised, recurrence
from regard.backends.documents import ROWS_IN_ORDER
from regard.backends.limits import Limited, no_weights, not_empty, on_mechanism
from regard.core.backend import Offer, Refusal
from regard.core.problem import Problem
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent


class LinearTime(Limited):
    """Mechanisms of features and recurrent ones, whose past is a sum or a memory; log_sum_exp is the only statistic."""

    name = "linear"
    limits = (
        on_mechanism(
            (Kernelised, Recurrent),
            "linear attention by feature maps and recurrent memories",
        ),
        not_empty,
        no_weights,
        *ROWS_IN_ORDER,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        module = recurrence if isinstance(problem.mechanism, Recurrent) else kernelised
        return Offer(module.cost(problem), partial(module.run, problem, recurrence.PLAIN))
