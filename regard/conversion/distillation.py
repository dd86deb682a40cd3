"""Training on the predictions of the original model beside the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.conversion.measures import Watched, counted, divergence
from regard.reprs import Described
from regard.training.task import Batch, Task

SHARE = 0.5  # of the loss that comes from the original's predictions


class Distillation(Described):
    """A task whose loss is half the task's own and half the divergence from the predictions of another model.

        (1 - s) · loss + s · Σ KL(original ‖ model)        s = 1/2, summed over the ids that the task counts

    Args:
        task: a task of a LanguageModel, TextEncoder or TranslationTransformer.
        teacher: the original model.

    Source: Distilling the Knowledge in a Neural Network, Hinton et al. 2015, section 2 (temperature 1).
    """

    def __init__(self, task: Task, teacher: nn.Module) -> None:
        self.task, self.teacher = task, teacher.eval().requires_grad_(False)

    def batch(self, index: int) -> Batch:
        """The batch of the task."""
        return self.task.batch(index)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | int]:
        """The sum over the ids, and their number."""
        student = Watched(model)
        loss, count = self.task.loss(student, batch)  # ty: ignore[invalid-argument-type]
        with torch.no_grad():
            self.teacher.to(student.logits.device)
            expected = self.teacher(*student.inputs)
        divergences = divergence(counted(expected, batch), counted(student.logits, batch))
        return (1 - SHARE) * loss + SHARE * divergences.sum().to(loss.dtype), count

    def validation_batches(self) -> Sequence[Batch]:
        """Those of the task."""
        return self.task.validation_batches()

    def validation_loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | int]:
        """The plain cross entropy of the task."""
        return self.task.validation_loss(model, batch)

    def fingerprint(self) -> dict[str, Any]:
        """That of the task, and the share of the original's predictions."""
        return {**self.task.fingerprint(), "distilled": SHARE}
