"""What is measured of a conversion on a text, and the report: what was saved, what was lost."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.packages import needed
from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.bench.report import markdown_table
from regard_lab.conversion.heads import Conversion, row
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


# Folders of Hugging Face, with the models of transformers

MEASURED_ROWS = 8  # of the held-out text; their logits are kept while the other model is loaded


def load_folder(folder: Path) -> Any:
    """The model of a folder in its own dtype, as transformers loads it."""
    with needed("transformers", "measuring a Hugging Face folder", "transformers"):
        from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@torch.no_grad()
def agreement_of_folders(folder: Path, out: Path, ids: torch.Tensor) -> PredictionAgreement:
    """The agreement of the models of two folders on ids (rows, length); one of them is in memory at a time."""
    found = []
    for each in (folder, out):
        model = load_folder(each)
        found.append([model(row[None], use_cache=False).logits[0, :-1].float() for row in ids[:MEASURED_ROWS]])
        del model
    return agreement(zip(*found, [row[1:] for row in ids[:MEASURED_ROWS]], strict=True))


# The report

UPTRAINED_SHARE = 0.05  # of the original training (Ainslie et al. 2023, section 3.1)
TOKENS_PER_PARAMETER = 20  # of a compute-optimal training (Hoffmann et al. 2022, section 3.4)
NEEDS_TRAINING = (
    "Fewer numbers give other outputs than the heads they were made of: train the model before you rely on its outputs."
)


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


def suggested_training(parameters: int, trained_tokens: int | None = None) -> tuple[int, str]:
    """For how many tokens to train a converted model, and why: 5 % of the original training, as in the paper.

    For an original training that is not known, 20 tokens for each parameter are assumed.

    >>> suggested_training(1_000_000, 2_000_000)
    (100000, '100,000 tokens: 5% of the original training')
    """
    tokens = round(UPTRAINED_SHARE * (trained_tokens or TOKENS_PER_PARAMETER * parameters))
    of = "the original training"
    if trained_tokens is None:
        of = f"{TOKENS_PER_PARAMETER} tokens for each of {parameters:,} parameters, since {of} is not known"
    return tokens, f"{tokens:,} tokens: {UPTRAINED_SHARE:.0%} of {of}"


@brief
@dataclass(frozen=True)
class ConversionReport:
    """Everything that was measured of a conversion, with the tokens of the original training."""

    done: Uptrained
    trained_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        losses, agreement = self.done.losses, self.done.agreement
        trained = None if losses is None or losses.uptrained is None else losses
        tokens, _ = self._suggested()
        return {
            "conversion": self.done.report.to_dict(),
            "budget": {"tokens": tokens, "original_training_known": self.trained_tokens is not None},
            "predictions": None if agreement is None else agreement.to_dict(),
            "uptrained": None if trained is None else {"loss": trained.uptrained, "steps": trained.steps},
        }

    def to_markdown(self) -> str:
        """The report as Markdown."""
        done = self.done.report
        became = f", which is now a model of type {done.became}" if done.became else ""
        heads = ", ".join(f"{name.replace('_', ' ')} {change}" for name, change in done.kv_heads.items())
        parts = [
            f"# Conversion of keys and values: {heads}", "",
            f"A model of kind {done.kind}{became}, method {done.method}.", "", "```", str(done), "```", "",
            *self._of_predictions(), *self._of_likeness(),
        ]  # fmt: skip
        if done.method != "repeat":
            parts += ["## Further training", "", f"Suggested: {self._suggested()[1]}.", ""]
        return "\n".join(parts)

    def _suggested(self) -> tuple[int, str]:
        return suggested_training(self.done.report.parameters.before, self.trained_tokens)

    def _of_predictions(self) -> list[str]:
        agreement, losses = self.done.agreement, self.done.losses
        if agreement is None or losses is None:
            needed = [] if self.done.report.method == "repeat" else [NEEDS_TRAINING, ""]
            return ["## Predictions", "", "Not measured: no text was given.", "", *needed]
        perplexities = agreement.to_dict()["perplexity"]
        rows = [
            ("loss, nats per id", f"{losses.before:.4f}", f"{losses.converted:.4f}"),
            ("perplexity", f"{perplexities[0]:.3f}", f"{perplexities[1]:.3f}"),
            ("KL divergence from the original, nats per id", "0", f"{agreement.divergence:.4f}"),
            ("same likeliest id", "100%", f"{agreement.agreement:.1%}"),
        ]
        text = f"On {count_of(agreement.ids, 'held-out ids', ',')}, before further training."
        needed = [NEEDS_TRAINING, ""]
        if losses.uptrained is not None:
            steps = count_of(losses.steps, "steps", ",")
            text += f" After {steps} of further training the loss is {losses.uptrained:.4f}."
            needed = []
        return ["## Predictions", "", text, "", *markdown_table(("", "before", "after"), rows), "", *needed]

    def _of_likeness(self) -> list[str]:
        layers = self.done.report.likeness
        if not layers:
            return []
        rows = [
            (one.layer, *(f"{pair[number]:.2f}" for number in (0, 1) for pair in (one.neighbours, one.pooled)))
            for one in layers
        ]
        return [
            "## Likeness of the pooled heads", "",
            "Mean cosine of the keys, and of the values, of two heads that were pooled together: of neighbours as they "
            "were, and of the groups as they were pooled. The mean of heads loses least where it is near 1.", "",
            *markdown_table(
                ("layer", "keys, neighbours", "keys, pooled", "values, neighbours", "values, pooled"), rows
            ), "",
        ]  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write report.json and report.md into a folder, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "report.json", (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        replace_file(folder / "report.md", self.to_markdown().encode())
