"""Training that can be killed at any instant and resumed to the same bits, for any model and any task.

The loop takes batches and losses from a `Task`, calls a function of yours with each event, prints nothing, and keeps
the last and the best checkpoint as folders that `regard_lab.models.storage.load_model` reads. Loss and gradient are
those per target token of the whole step, however it is cut into micro-batches and processes.
"""

from regard_lab.training.checkpoint import RunSummary, average_checkpoints, read_run
from regard_lab.training.config import TrainingConfig
from regard_lab.training.curves import draw_curves
from regard_lab.training.engine import Batch, Task
from regard_lab.training.events import (
    Event,
    Progress,
    Saved,
    Started,
    StepDone,
    Stopping,
    Validated,
)
from regard_lab.training.log import read_log
from regard_lab.training.loop import TrainingResult, train

__all__ = [
    "train",
    "TrainingConfig",
    "TrainingResult",
    "average_checkpoints",
    "Task",
    "Batch",
    "Event",
    "Progress",
    "Started",
    "StepDone",
    "Validated",
    "Saved",
    "Stopping",
    "read_run",
    "RunSummary",
    "read_log",
    "draw_curves",
]
