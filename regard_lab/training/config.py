"""How long, how fast and how carefully to train: one frozen record, checked when it is made, its schedule and its end.

A training without a number of steps has a plan of its last step. The plan decides learning rates, so it is stored in
every checkpoint and in the log: between two plans the training is a function of seed and step, as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self

from regard.arguments import of_kind, one_of, real, suggest, whole
from regard.errors import ArgumentError
from regard.reprs import brief

SCHEDULES = ("inverse_square_root", "cosine", "constant")
PRECISIONS = ("float32", "bfloat16")
# Settings of runs begun before 2026-11-26, and what is done now.
GONE = {"skip_non_finite": 0, "parallel": "ddp"}
# Until 2026-11-29 this setting said how many batches a step reads, which has a name of its own now.
RENAMED = {"accumulate": "batches_per_step"}
PLAN_EVERY = 10  # steps between plans of the last step, where the config has no number of steps
VALIDATIONS = 10  # of a training whose config has no number of steps between them
CHOSEN = "chosen by the data and the budget"  # in help, of a setting that a command chooses for a new run


def as_named_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by the names that they have now; in the order in which they were.

    >>> as_named_now({"steps": 5, "accumulate": 4})
    {'steps': 5, 'batches_per_step': 4}
    >>> as_named_now({"batches_per_step": 1, "accumulate": 4})
    {'batches_per_step': 1, 'accumulate': 4}
    """
    renamed = {} if "batches_per_step" in settings else RENAMED
    return {renamed.get(name, name): value for name, value in settings.items()}


def setting(default: Any = MISSING, **more: Any) -> Any:
    """A field of a Config that is also an option on the command line.

    Its help is the entry under Args in the class's docstring. `more` may have `least`, the smallest number allowed;
    `metavar`, the option's value in the help; `shown`, the default in words, where None stands for something that
    follows from other settings; `option`, its names, where they do not follow from the field's.
    """
    return field(default=default, metadata={"is_option": True, **more})


@brief
@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of one training; each is checked here, and `to_dict` gives it back as JSON values.

    Args:
        steps: optimiser steps; without a number, as many as the minutes allow, or until validation stops improving
            (patience).
        minutes: largest training time in minutes, including the last validation and all sessions of a resumed run.
        learning_rate: peak learning rate, reached at the end of the warm-up.
        warmup_steps: warm-up steps, in which the learning rate rises linearly from zero; 0 for none.
        schedule: the learning rate after the warm-up: inverse_square_root, cosine (down to zero at the last step) or
            constant.
        cooldown: share of the steps, at the end, in which the learning rate falls linearly to zero; with minutes alone,
            share of the minutes.
        betas: Adam's two decay rates.
        epsilon: Adam's guard against division by zero.
        weight_decay: decoupled decay of the matrices; vectors (biases, norms) are never decayed.
        gradient_clip: the largest allowed norm of all gradients together; None for no limit.
        batches_per_step: batches that are read for one step, one after the other, in the memory of one.
        accumulate: parts into which each batch is divided, one after the other: the same step in less memory.
        validate_every: steps between validations; without a number, a tenth of all steps.
        patience: validations in a row without improvement after which training stops or, if no number of steps is
            given, its cooldown begins; no limit by default.
        save_every: steps between checkpoints; every new best model is saved as well. None: after each validation.
        keep: number of last checkpoints to keep beside the best one, as for `regard average`.
        log_every: steps between lines of the log.
        seed: seed of all random numbers: those of step s are a function of (seed, s, process).
        precision: number format of matrix products; weights and optimiser are float32.

    Raises:
        ArgumentError: a value outside its range, or nothing that ends the training.

    >>> TrainingConfig(steps=100).warmup_steps
    400
    >>> TrainingConfig.from_dict(TrainingConfig(steps=100, seed=3).to_dict()).seed
    3
    >>> TrainingConfig(steps=0)
    Traceback (most recent call last):
    regard.errors.ArgumentError: steps is 0; it needs a whole number, 1 or more
    """

    steps: int | None = setting(1_000, least=1, shown=CHOSEN)
    minutes: float | None = setting(None, shown=CHOSEN)
    learning_rate: float = setting(1e-3, shown=CHOSEN)
    warmup_steps: int = setting(400, least=0, shown=CHOSEN)
    schedule: str = setting("inverse_square_root", shown=CHOSEN)
    cooldown: float = setting(0.0, shown=CHOSEN)
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    weight_decay: float = setting(0.0, least=0)
    gradient_clip: float | None = 1.0
    batches_per_step: int = setting(1, least=1)
    accumulate: int = setting(1, least=1)
    validate_every: int | None = setting(200, least=1, shown=CHOSEN)
    patience: int | None = setting(None, least=1)
    save_every: int | None = 200
    keep: int = setting(1, least=1)
    log_every: int = 10
    seed: int = setting(0, least=0)
    precision: str = setting("float32", metavar="|".join(PRECISIONS))

    def __post_init__(self) -> None:
        for entry in fields(TrainingConfig):
            value = getattr(self, entry.name)
            least = entry.metadata.get("least")
            if value is None and entry.type.endswith("None"):
                continue
            if entry.type.startswith("int"):
                whole(entry.name, value, 1 if least is None else least)
            elif entry.type.startswith("float") and entry.name != "cooldown":
                real(entry.name, value, least, above=0 if least is None else None)
        real("cooldown", self.cooldown, 0, 1, needs="a share of the steps, from 0 to 1")
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("precision", self.precision, PRECISIONS)
        betas = self.betas if isinstance(self.betas, tuple | list) else ()
        if len(betas) != 2 or any(real("betas", beta, 0) >= 1 for beta in betas):
            raise ArgumentError(f"betas is {self.betas!r}; it needs two numbers from 0 to below 1")
        # A JSON list is welcome.
        object.__setattr__(self, "betas", tuple(betas))

        if self.steps is None and self.minutes is None:
            if self.patience is None:
                raise ArgumentError("nothing ends this training; give steps, minutes, or patience")
            if self.schedule == "cosine":
                raise ArgumentError(
                    "the cosine falls to the last step, which patience does not name; give steps or minutes, or "
                    "another schedule with a cooldown"
                )

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, in the order of this class."""
        return {**asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; settings that are left out take their defaults.

        Raises:
            ArgumentError: a setting that does not exist, or a value outside its range.
        """
        of_kind("settings", settings, dict, "the settings by name, as to_dict gives them")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(settings.keys() - set(known)):
            raise ArgumentError(
                f"there is no training setting {', '.join(unknown)}; {suggest(unknown[0], known)}"
            )
        return cls(**settings)


def learning_rate_at(config: TrainingConfig, step: int, last: int | None = None) -> float:
    """The learning rate of a step, counted from 1.

        warm-up (step <= w)    peak * step / w
        inverse_square_root    peak * sqrt(w / step)
        cosine                 peak * (1 + cos(pi * (step - w) / (last - w))) / 2
        constant               peak
        cooldown c             any of these * min(1, (last - step) / (c * last))

    With peak = dim ** -0.5 * w ** -0.5 the first is the paper's dim ** -0.5 * min(step ** -0.5, step * w ** -1.5).

    Args:
        config: the peak is its `learning_rate`, w its `warmup_steps`; if its `steps` is None, w is at most a tenth of
            `last`.
        step: from 1.
        last: the last step; by default `config.steps`. While neither is known, there is no cooldown and no cosine.

    Raises:
        ArgumentError: a step below 1.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 5.3; cosine: Loshchilov and Hutter, SGDR, 2017;
    cooldown: Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024.

    >>> config = TrainingConfig(learning_rate=1.0, warmup_steps=4)
    >>> [learning_rate_at(config, step) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    of_kind("config", config, TrainingConfig, "a TrainingConfig")
    if whole("step", step) < 1:
        raise ArgumentError(f"step is {step}; steps are counted from 1")
    last = config.steps if last is None else whole("last", last, 1)
    cooled = 1.0
    if last is not None and config.cooldown:
        cooled = min(1.0, max(last - step, 0) / (config.cooldown * last))
    return config.learning_rate * _share_of_peak(config, step, last) * cooled


def _share_of_peak(config: TrainingConfig, step: int, last: int | None) -> float:
    """The learning rate of a step without cooldown, as a share of the peak."""
    warmup = config.warmup_steps
    if config.steps is None and last is not None:
        warmup = min(warmup, max(1, last // 10))
    if step <= warmup:
        return step / warmup
    if config.schedule == "inverse_square_root":
        return math.sqrt(max(warmup, 1) / step)
    if config.schedule == "cosine" and last is not None:
        done = (step - warmup) / max(last - warmup, 1)
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2
    return 1.0


def step_when_time_ends(step: int, seconds: float, budget: float) -> int:
    """The step at which the seconds are used up, if all steps take as long as those so far, validations included.

        last = step / share,  share = seconds / budget

    With each new plan the share of the steps comes closer to the share of the time, so that a cooldown is over when
    the time is, also on a machine that becomes slower. `budget` is without the seconds of the last validation.

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
    """Whether to validate after a step: `every` so many, or a tenth of those that are planned since `validated`.

    >>> validation_is_due(20, 15, 10, None), validation_is_due(29, 20, None, 100), validation_is_due(30, 20, None, 100)
    (True, False, True)
    """
    if every is not None:
        return step % every == 0
    if last is None:
        return False

    # The last step is validated anyway, so none of these comes close before it.
    every = max(1, last // VALIDATIONS)
    return step - validated >= every and 2 * (last - step) >= every
