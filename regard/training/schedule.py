"""The learning rate of each step: a pure function, so that a checkpoint stores nothing of it."""

import math

from regard.arguments import whole
from regard.errors import ArgumentError
from regard.kinds import of_kind
from regard.training.config import TrainingConfig


def learning_rate_at(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step, counted from 1.

        warm-up (step <= w)    peak * step / w
        inverse_square_root    peak * sqrt(w / step)
        cosine                 peak * (1 + cos(pi * (step - w) / (steps - w))) / 2
        constant               peak

    With peak = dim ** -0.5 * w ** -0.5 the first is the paper's dim ** -0.5 * min(step ** -0.5, step * w ** -1.5).

    Args:
        config: the peak is its `learning_rate`, w its `warmup_steps`.
        step: from 1.

    Raises:
        ArgumentError: a step below 1.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 5.3; cosine: Loshchilov and Hutter, SGDR, 2017.

    >>> config = TrainingConfig(learning_rate=1.0, warmup_steps=4)
    >>> [learning_rate_at(config, step) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    of_kind("config", config, TrainingConfig, "a TrainingConfig")
    if whole("step", step) < 1:
        raise ArgumentError(f"step is {step}; steps are counted from 1")
    peak, warmup = config.learning_rate, config.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if config.schedule == "inverse_square_root":
        return peak * math.sqrt(max(warmup, 1) / step)
    if config.schedule == "cosine":
        done = (step - warmup) / max(config.steps - warmup, 1)
        return peak * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return peak
