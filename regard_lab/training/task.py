"""What is trained: the four questions that the loop asks, and nothing about models or text."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

Batch = Any
"""Whatever the task's own losses understand: a tensor, a tuple, a dict, or an object with `.to(device)`."""


class Task(Protocol):
    """Data and losses of one training.

    Under several processes each has its own task, which gives its own share of the same batch (the rank is the
    task's business); sums and token counts are added up over the processes by the loop. A loss calls the model
    as `model(...)`, never one of its methods, so that the processes' gradients meet.
    """

    def batch(self, index: int) -> Batch:
        """The micro-batch number `index`: a pure function of it, so that a resumed run sees the same data.

        With `TrainingConfig.accumulate` = a, step s (from 0) reads the indices s * a to s * a + a - 1.
        """
        ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | int]:
        """What is minimised: the sum (never the mean) over target tokens, and the number of those tokens."""
        ...

    def validation_batches(self) -> Sequence[Batch]:
        """The same batches at each call; none where there is nothing to validate on."""
        ...

    def validation_loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | int]:
        """The plain cross entropy, without smoothing: its sum in nats and the number of target tokens."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """JSON values that tell this data from other data; a run is resumed only where all of them are equal."""
        ...
