"""The report of a conversion: what was saved, what was lost, and how much training the paper would spend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.conversion.heads import Conversion, Likeness, row
from regard_lab.conversion.measures import Agreement, Speed
from regard_lab.seeing.canvas import checked_path, new_figure, save
from regard_lab.training import TrainingResult

UPTRAINED_SHARE = 0.05  # of the original training (Ainslie et al. 2023, section 3.1)
TOKENS_PER_PARAMETER = 20  # of a compute-optimal training (Hoffmann et al. 2022, section 3.4)
NEEDS_TRAINING = (
    "Pooled heads give other outputs than the heads they were made of: train the model before you rely on its outputs."
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
    agreement: Agreement | None = None
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


@brief
@dataclass(frozen=True)
class TrainingBudget:
    """How long to train a converted model: 5 % of the original training, as in the paper of grouped queries.

    Args:
        parameters: number of parameters of the original.
        trained_tokens: of the original training; None if not known, and then 20 tokens for each parameter are assumed.

    >>> print(TrainingBudget(1_000_000))
    1,000,000 tokens: 5% of 20 tokens for each of 1,000,000 parameters, since the original training is not known
    """

    parameters: int
    trained_tokens: int | None = None

    @property
    def tokens(self) -> int:
        return round(UPTRAINED_SHARE * (self.trained_tokens or TOKENS_PER_PARAMETER * self.parameters))

    def __str__(self) -> str:
        share = f"{self.tokens:,} tokens: {UPTRAINED_SHARE:.0%} of"
        if self.trained_tokens is not None:
            return f"{share} the original training"
        return (
            f"{share} {TOKENS_PER_PARAMETER} tokens for each of {self.parameters:,} parameters, since the original "
            f"training is not known"
        )


@brief
@dataclass(frozen=True)
class ConversionReport:
    """Everything that was measured of a conversion, with the suggested further training and speeds by context."""

    done: Uptrained
    budget: TrainingBudget
    speeds: Sequence[Speed] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        losses, agreement = self.done.losses, self.done.agreement
        trained = None if losses is None or losses.uptrained is None else losses
        known = self.budget.trained_tokens is not None
        return {
            "conversion": self.done.report.to_dict(),
            "budget": {"tokens": self.budget.tokens, "original_training_known": known},
            "predictions": None if agreement is None else agreement.to_dict(),
            "uptrained": None if trained is None else {"loss": trained.uptrained, "steps": trained.steps},
            "decoding": [{**speed._asdict(), "ratio": speed.ratio} for speed in self.speeds],
        }

    def to_markdown(self) -> str:
        """The report as Markdown."""
        done = self.done.report
        became = f", which is now a model of type {done.became}" if done.became else ""
        heads = ", ".join(f"{name.replace('_', ' ')} {change}" for name, change in done.kv_heads.items())
        parts = [
            f"# Conversion of key/value heads: {heads}", "",
            f"A model of kind {done.kind}{became}, method {done.method}.", "", "```", str(done), "```", "",
            *self._of_predictions(), *self._of_decoding(), *self._of_likeness(),
        ]  # fmt: skip
        if done.method != "repeat":
            parts += ["## Further training", "", f"Suggested: {self.budget}.", ""]
        return "\n".join(parts)

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
        return ["## Predictions", "", text, "", *_table("| | before | after |", rows), "", *needed]

    @property
    def _draws_decoding(self) -> bool:
        """Whether there are lines to draw: one context is a point, and the table says as much."""
        return len(self.speeds) > 1

    def _of_decoding(self) -> list[str]:
        if not self.speeds:
            return []
        rows = [
            (f"{speed.context:,}", *(f"{ms:.2f}" for ms in speed.milliseconds), f"{speed.ratio:.2f}",
             *(f"{count:,.0f}" for count in speed.cache_bytes))
            for speed in self.speeds
        ]  # fmt: skip
        return [
            "## Decoding", "", "CPU milliseconds per id, and cache bytes per id counted on the caches, by context.", "",
            *_table("| context | before | after | times faster | bytes before | bytes after |", rows), "",
            *(["![decoding](decoding.png)", ""] if self._draws_decoding else []),
        ]  # fmt: skip

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
            *_table("| layer | keys, neighbours | keys, pooled | values, neighbours | values, pooled |", rows), "",
            "![likeness](likeness.png)", "",
        ]  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and the figures into a folder, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._draws_decoding:
            draw_decoding(self.speeds, folder / "decoding.png")
        if self.done.report.likeness:
            draw_likeness(self.done.report.likeness, folder / "likeness.png")
        replace_file(folder / "report.json", (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        replace_file(folder / "report.md", self.to_markdown().encode())


def _table(header: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [header, "|---" * (header.count("|") - 1) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def draw_likeness(layers: Sequence[Likeness], path: Path) -> None:
    """Draw the likeness of the pooled heads by layer."""
    with new_figure() as figure:
        figure.set_size_inches(7, 3)
        for number, what in enumerate(("keys", "values")):
            axes = figure.add_subplot(1, 2, number + 1)
            axes.plot([one.neighbours[number] for one in layers], "o--", color="#888888", label="neighbours")
            axes.plot([one.pooled[number] for one in layers], "o-", color="#1f5f8b", label="as pooled")
            axes.set(title=what, xlabel="layer", ylim=(-0.1, 1.05))
            axes.set_ylabel("mean cosine in a group" if number == 0 else "")
            axes.set_xticks(range(0, len(layers), -(-len(layers) // 8)))
            axes.legend(fontsize=8)
        figure.tight_layout()
        save(figure, checked_path(path))


def draw_decoding(speeds: Sequence[Speed], path: Path) -> None:
    """Draw the time and the cache of decoding by context."""
    contexts = [speed.context for speed in speeds]
    with new_figure() as figure:
        figure.set_size_inches(7, 3)
        for number, (title, quantity) in enumerate(
            (("CPU milliseconds per id", "milliseconds"), ("cache, bytes per id", "cache_bytes"))
        ):
            axes = figure.add_subplot(1, 2, number + 1)
            for side, (label, colour) in enumerate((("before", "#888888"), ("after", "#1f5f8b"))):
                values = [getattr(speed, quantity)[side] for speed in speeds]
                axes.plot(contexts, values, "o-", color=colour, label=label)
            axes.set(title=title, xlabel="context, ids", ylim=(0, None))
            axes.legend(fontsize=8)
        figure.tight_layout()
        save(figure, checked_path(path))
