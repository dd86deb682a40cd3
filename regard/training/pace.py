"""Where a training without a number of steps ends: planned from the time used, or some time after patience is used up.

A plan decides learning rates, so it is stored in every checkpoint and in the log: between two plans the training is a
function of seed and step, as any other.
"""

from __future__ import annotations

import math

PLAN_EVERY = 10  # steps between plans
VALIDATIONS = 10  # of a training whose config names no number of steps between them


def step_when_time_ends(step: int, seconds: float, budget: float) -> int:
    """The step at which the seconds are used up, if all steps take as long as those so far, validations included.

        last = step / share,  share = seconds / budget

    With each new plan the share of the steps comes closer to the share of the time, so that a cooldown is over when
    the time is, also on a machine that becomes slower.

    Args:
        step: steps done, at least 1.
        seconds: used so far.
        budget: that there are, without those of the last validation.

    >>> step_when_time_ends(30, 6.0, 60.0), step_when_time_ends(30, 70.0, 60.0)
    (300, 30)
    """
    if budget <= seconds:
        return step
    return max(step + 1, math.floor(step * budget / max(seconds, 1e-9)))


def step_when_cooled(step: int, cooldown: float) -> int:
    """The last step of a training whose cooldown, a share of all its steps, begins now.

        last = step / (1 - cooldown)

    >>> step_when_cooled(60, 0.4), step_when_cooled(60, 0.0)
    (100, 60)
    """
    return max(step, math.ceil(step / (1 - min(cooldown, 0.9)) - 1e-9))


def validation_is_due(step: int, validated: int, every: int | None, last: int | None) -> bool:
    """Whether to validate after a step.

    Args:
        step: steps done.
        validated: the step of the last validation; 0 for none.
        every: steps between validations; None for a tenth of all.
        last: the last step as planned now.

    >>> validation_is_due(20, 15, 10, None), validation_is_due(29, 20, None, 100), validation_is_due(30, 20, None, 100)
    (True, False, True)
    """
    if every is not None:
        return step % every == 0
    if last is None:
        return False
    every = max(1, last // VALIDATIONS)
    return step - validated >= every and 2 * (last - step) >= every  # the last step is validated anyway
