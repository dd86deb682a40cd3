"""Training on the predictions of the original model beside the text, and comparing the predictions of two models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from regard.reprs import Described
from regard.text import PAD
from regard.training.task import Batch, Task

SHARE = 0.5  # of the loss that comes from the original's predictions


class _Watched:
    """Calls a model and keeps what it was given and what it returned."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.inputs: tuple[Any, ...] = ()
        self.logits = torch.zeros(())

    def __call__(self, *inputs: Any) -> torch.Tensor:
        self.inputs = inputs
        self.logits = self.model(*inputs)
        return self.logits


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
        student = _Watched(model)
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


def counted(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The logits of the ids that a task counts: (ids, vocab_size)."""
    following = getattr(batch, "next", None)
    return logits if following is None else logits[following != PAD]


def divergence(expected: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL divergence of the predictions from the expected ones in nats, for each row of logits (ids, vocab_size)."""
    first, second = (each.float().log_softmax(-1) for each in (expected, logits))
    return (first.exp() * (first - second)).sum(-1)


@dataclass(frozen=True)
class Agreement:
    """How far the predictions of a converted model are from the original's on a text.

    Args:
        ids: number of ids.
        loss: mean cross entropies of the original and of the converted model, in nats per id.
        divergence: mean KL divergence from the original's predictions, in nats per id.
        agreement: share of ids where both find the same id likeliest.

    >>> Agreement(10, (0.0, 1.0), 0.5, 0.9).to_dict()["perplexity"][0]
    1.0
    """

    ids: int
    loss: tuple[float, float]
    divergence: float
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with the perplexities."""
        return {**asdict(self), "perplexity": [math.exp(min(loss, 700.0)) for loss in self.loss]}


def agreement(batches: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> Agreement:
    """Compare predictions: logits of the original and of the converted model (ids, vocab_size), and the targets."""
    loss, difference, same, ids = [0.0, 0.0], 0.0, 0, 0
    for expected, logits, targets in batches:
        for number, each in enumerate((expected, logits)):
            loss[number] += float(nn.functional.cross_entropy(each.float(), targets, reduction="sum"))
        difference += float(divergence(expected, logits).sum())
        same += int((expected.argmax(-1) == logits.argmax(-1)).sum())
        ids += len(targets)
    count = max(1, ids)
    return Agreement(ids, (loss[0] / count, loss[1] / count), difference / count, same / count)


@torch.no_grad()
def agreement_on_task(model: nn.Module, other: nn.Module, task: Task) -> Agreement:
    """The agreement of two models of regard on what a task holds out."""

    def batches() -> Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for batch in task.validation_batches():
            watched = [_Watched(each.eval()) for each in (model, other)]
            for each in watched:
                task.validation_loss(each, batch)  # ty: ignore[invalid-argument-type]
            following = getattr(batch, "next", None)
            targets = batch.words if following is None else following[following != PAD]
            yield counted(watched[0].logits, batch), counted(watched[1].logits, batch), targets

    return agreement(batches())
