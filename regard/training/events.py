"""What the loop tells while it works: small records handed to one function; the loop itself prints nothing."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """Training begins or goes on: `step` steps are done; `notes` say what differs harmlessly from before."""

    step: int
    steps: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepDone:
    """One optimiser step: loss in nats per target token, and the gradients' norm before clipping."""

    step: int
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class StepSkipped:
    """A loss or gradient was not finite, so the weights were left as they were; `in_a_row` such steps so far."""

    step: int
    steps: int
    in_a_row: int


@dataclass(frozen=True)
class Validated:
    """The plain cross entropy over the validation batches, in nats per token; `is_best` of all so far."""

    step: int
    loss: float
    is_best: bool


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint is on the disk."""

    step: int
    folder: str
    is_best: bool


@dataclass(frozen=True)
class Noticed:
    """Something went wrong that stops nothing: a copy of the log that cannot be written, for instance."""

    step: int
    text: str


Event = Started | StepDone | StepSkipped | Validated | Saved | Noticed
Progress = Callable[[Event], None]
