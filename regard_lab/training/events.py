"""What a training tells while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from regard.reprs import brief


@brief
@dataclass(frozen=True)
class Started:
    """Training begins or goes on: `step` steps are done; `notes` list what differs harmlessly from before.

    `steps`, here and in the other events, is the number of the last step, as planned now; None while it is not known.
    """

    step: int
    steps: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepDone:
    """One optimiser step: loss in nats per target token, and the gradients' norm before clipping."""

    step: int
    steps: int | None
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_left: float | None


@dataclass(frozen=True)
class Validated:
    """The plain cross entropy over the validation batches, in nats per token; `is_best` of all so far.

    `skills` has the share of right ids for each skill that the task counts.
    """

    step: int
    loss: float
    is_best: bool
    skills: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint is on the disk."""

    step: int
    folder: str
    is_best: bool


@dataclass(frozen=True)
class Stopping:
    """A signal asked to stop: after the step that runs, the run is saved. Reported by the handler of the signal."""

    step: int


Event = Started | StepDone | Validated | Saved | Stopping
Progress = Callable[[Event], None]
Showing = Callable[[], AbstractContextManager[Progress | None]]
"""Makes a context that gives a function for the events of a training."""
