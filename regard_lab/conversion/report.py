"""What is measured of a conversion on a text: what was lost, and what training brought back."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard_lab.conversion.heads import Conversion, row
from regard_lab.conversion.pretrained import load_folder
from regard_lab.text import PAD
from regard_lab.training import TrainingResult
from regard_lab.training.engine import Batch, Task

# Predictions


class WatchedModel(nn.Module):
    """Calls a model and keeps what it was given and what it returned."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.training = model, model.training
        self.inputs: tuple[Any, ...] = ()
        self.logits = torch.zeros(())

    def forward(self, *inputs: Any) -> torch.Tensor:
        self.inputs = inputs
        self.logits = self.model(*inputs)
        return self.logits


def counted(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The logits of the ids that a task counts: (ids, vocab_size)."""
    following = getattr(batch, "next", None)
    return logits if following is None else logits[following != PAD]


def divergence(expected: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL divergence of the predictions from the expected ones in nats, for each row of logits (ids, vocab_size)."""
    first, second = (each.float().log_softmax(-1) for each in (expected, logits))
    return (first.exp() * (first - second)).sum(-1)


@dataclass(frozen=True)
class PredictionAgreement:
    """How far the predictions of a converted model are from the original's on a text.

    Args:
        loss: mean cross entropies of the original and of the converted model, in nats per id.
        divergence: mean KL divergence from the original's predictions, in nats per id.
        agreement: share of ids where both find the same id likeliest.

    >>> PredictionAgreement(10, (0.0, 1.0), 0.5, 0.9).to_dict()["perplexity"][0]
    1.0
    """

    ids: int
    loss: tuple[float, float]
    divergence: float
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with the perplexities."""
        return {**asdict(self), "perplexity": [math.exp(min(loss, 700.0)) for loss in self.loss]}


def agreement(batches: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> PredictionAgreement:
    """Compare predictions: logits of the original and of the converted model (ids, vocab_size), and the targets."""
    loss, difference, same, ids = [0.0, 0.0], 0.0, 0, 0
    for expected, logits, targets in batches:
        for number, each in enumerate((expected, logits)):
            loss[number] += float(nn.functional.cross_entropy(each.float(), targets, reduction="sum"))
        difference += float(divergence(expected, logits).sum())
        same += int((expected.argmax(-1) == logits.argmax(-1)).sum())
        ids += len(targets)
    count = max(1, ids)
    return PredictionAgreement(ids, (loss[0] / count, loss[1] / count), difference / count, same / count)


@torch.no_grad()
def agreement_on_task(model: nn.Module, other: nn.Module, task: Task) -> PredictionAgreement:
    """The agreement of two models of regard on what a task holds out."""

    def batches() -> Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for batch in task.validation_batches():
            watched = [WatchedModel(each.eval()) for each in (model, other)]
            for each in watched:
                task.validation_loss(each, batch)
            following = getattr(batch, "next", None)
            targets = batch.words if following is None else following[following != PAD]
            yield counted(watched[0].logits, batch), counted(watched[1].logits, batch), targets

    return agreement(batches())


MEASURED_ROWS = 8  # of the held-out text; their logits are kept while the other model is loaded


@torch.no_grad()
def agreement_of_folders(folder: Path, out: Path, ids: torch.Tensor) -> PredictionAgreement:
    """The agreement of the models of two folders on ids (rows, length); one of them is in memory at a time."""
    found = []
    for each in (folder, out):
        model = load_folder(each)
        found.append([model(row[None], use_cache=False).logits[0, :-1].float() for row in ids[:MEASURED_ROWS]])
        del model
    return agreement(zip(*found, [row[1:] for row in ids[:MEASURED_ROWS]], strict=True))


@dataclass(frozen=True)
class Losses:
    """On the held-out text, in nats per id: of the model as it was, as it was converted, and after training."""

    before: float
    converted: float
    uptrained: float | None = None
    steps: int = 0

    @property
    def recovered(self) -> float | None:
        """The share of what the conversion lost that training brought back."""
        if self.uptrained is None or self.converted <= self.before:
            return None
        return (self.converted - self.uptrained) / (self.converted - self.before)

    def __str__(self) -> str:
        remark = ""
        if self.uptrained is not None:
            share = self.recovered
            back = "" if share is None else f": {share:.0%} of what was lost is back"
            if share is not None and share < 0:
                back = ": more than before them; try another learning rate"
            if share is not None and share > 1:
                back = ": lower than before, since these steps also trained what the first training left"
            remark = f"{self.uptrained:.4f} after {count_of(self.steps, 'steps', ',')}{back}"
        return row("loss, nats per id", f"{self.before:.4f}", f"{self.converted:.4f}", remark)


@dataclass(frozen=True)
class Uptrained:
    """A conversion, how far the two models agree where a text was given, and the training if there was one.

    `agreement` compares the predictions before further training.
    """

    report: Conversion
    agreement: PredictionAgreement | None = None
    training: TrainingResult | None = None

    @property
    def losses(self) -> Losses | None:
        """The losses on the held-out text; None without a text."""
        if self.agreement is None:
            return None
        trained = () if self.training is None else (self.training.valid_loss, self.training.steps)
        return Losses(*self.agreement.loss, *trained)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, losses in nats per id."""
        losses = self.losses
        measured = None if losses is None else {**asdict(losses), "recovered": losses.recovered, "unit": "nats an id"}
        predictions = None if self.agreement is None else self.agreement.to_dict()
        return {**self.report.to_dict(), "losses": measured, "predictions": predictions}

    def __str__(self) -> str:
        return str(self.report) if self.losses is None else f"{self.report}\n{self.losses}"
