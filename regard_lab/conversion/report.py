"""The report of a conversion: what was saved, what was lost, and how much training the paper would spend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.conversion.heads import Conversion, Likeness
from regard_lab.conversion.measures import Agreement, Speed
from regard_lab.seeing.canvas import checked_path, new_figure, save

UPTRAINED_SHARE = 0.05  # of the original training (Ainslie et al. 2023, section 3.1)
TOKENS_PER_PARAMETER = 20  # of a compute-optimal training (Hoffmann et al. 2022, section 3.4)
NEEDS_TRAINING = (
    "Pooled heads give other outputs than the heads they were made of: train the model before you rely on its outputs."
)


@brief
@dataclass(frozen=True)
class Budget:
    """How long to train a converted model: 5 % of the original training.

    Args:
        tokens: of the further training.
        known: whether the length of the original training is known; otherwise 20 tokens for each parameter are assumed.

    >>> print(budget(1_000_000))
    1,000,000 tokens: 5% of 20 tokens for each of 1,000,000 parameters, since the original training is not known
    """

    tokens: int
    known: bool
    parameters: int

    def __str__(self) -> str:
        share = f"{UPTRAINED_SHARE:.0%}"
        if self.known:
            return f"{self.tokens:,} tokens: {share} of the original training"
        return (
            f"{self.tokens:,} tokens: {share} of {TOKENS_PER_PARAMETER} tokens for each of {self.parameters:,} "
            f"parameters, since the original training is not known"
        )


def budget(parameters: int, trained_tokens: int | None = None) -> Budget:
    """The further training that the paper of grouped queries would spend, from the length of the original one."""
    whole = trained_tokens or TOKENS_PER_PARAMETER * parameters
    return Budget(round(UPTRAINED_SHARE * whole), trained_tokens is not None, parameters)


@brief
@dataclass(frozen=True)
class ConversionReport:
    """Everything that was measured of a conversion.

    Args:
        conversion: heads, parameters and bytes.
        budget: the suggested further training.
        agreement: on a held-out text, before further training; None without a text.
        uptrained: loss after further training in nats per id, and its steps; None without.
        speeds: of decoding, by context.
    """

    conversion: Conversion
    budget: Budget
    agreement: Agreement | None = None
    uptrained: tuple[float, int] | None = None
    speeds: Sequence[Speed] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "conversion": self.conversion.to_dict(),
            "budget": {"tokens": self.budget.tokens, "original_training_known": self.budget.known},
            "predictions": None if self.agreement is None else self.agreement.to_dict(),
            "uptrained": None if self.uptrained is None else dict(zip(("loss", "steps"), self.uptrained, strict=True)),
            "decoding": [{**speed._asdict(), "ratio": speed.ratio} for speed in self.speeds],
        }

    def to_markdown(self) -> str:
        """The report as Markdown."""
        done = self.conversion
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
        if self.agreement is None:
            needed = [] if self.conversion.method == "repeat" else [NEEDS_TRAINING, ""]
            return ["## Predictions", "", "Not measured: no text was given.", "", *needed]
        values = self.agreement.to_dict()
        losses, perplexities = values["loss"], values["perplexity"]
        rows = [
            ("loss, nats per id", f"{losses[0]:.4f}", f"{losses[1]:.4f}"),
            ("perplexity", f"{perplexities[0]:.3f}", f"{perplexities[1]:.3f}"),
            ("KL divergence from the original, nats per id", "0", f"{self.agreement.divergence:.4f}"),
            ("same likeliest id", "100%", f"{self.agreement.agreement:.1%}"),
        ]
        lines = ["| | before | after |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
        more = "" if self.uptrained is None else (
            f" After {count_of(self.uptrained[1], 'steps', ',')} of further training the loss is "
            f"{self.uptrained[0]:.4f}."
        )  # fmt: skip
        said = f"On {count_of(self.agreement.ids, 'held-out ids', ',')}, before further training.{more}"
        return ["## Predictions", "", said, "", *lines, "", *([] if self.uptrained else [NEEDS_TRAINING, ""])]

    @property
    def _draws_decoding(self) -> bool:
        """Whether there are lines to draw: one context is a point, and the table says as much."""
        return len(self.speeds) > 1

    def _of_decoding(self) -> list[str]:
        if not self.speeds:
            return []
        rows = [
            f"| {speed.context:,} | {speed.milliseconds[0]:.2f} | {speed.milliseconds[1]:.2f} | {speed.ratio:.2f} | "
            f"{speed.cache_bytes[0]:,.0f} | {speed.cache_bytes[1]:,.0f} |"
            for speed in self.speeds
        ]
        return [
            "## Decoding", "", "CPU milliseconds per id, and cache bytes per id counted on the caches, by context.", "",
            "| context | before | after | times faster | bytes before | bytes after |", "|---" * 6 + "|", *rows, "",
            *(["![decoding](decoding.png)", ""] if self._draws_decoding else []),
        ]  # fmt: skip

    def _of_likeness(self) -> list[str]:
        if not self.conversion.likeness:
            return []
        rows = [
            f"| {one.layer} | {one.neighbours[0]:.2f} | {one.pooled[0]:.2f} | {one.neighbours[1]:.2f} | "
            f"{one.pooled[1]:.2f} |"
            for one in self.conversion.likeness
        ]
        return [
            "## Likeness of the pooled heads", "",
            "Mean cosine of the keys, and of the values, of two heads that were pooled together: of neighbours as they "
            "were, and of the groups as they were pooled. The mean of heads loses least where it is near 1.", "",
            "| layer | keys, neighbours | keys, pooled | values, neighbours | values, pooled |", "|---" * 5 + "|",
            *rows, "", "![likeness](likeness.png)", "",
        ]  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and the figures into a folder, which is created.

        Raises:
            MissingPackageError: matplotlib is not installed.
            CheckpointError: the files could not be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self._draws_decoding:
            draw_decoding(self.speeds, folder / "decoding.png")
        if self.conversion.likeness:
            draw_likeness(self.conversion.likeness, folder / "likeness.png")
        replace_file(folder / "report.json", (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        replace_file(folder / "report.md", self.to_markdown().encode())


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
        for number, (what, of) in enumerate(
            (("CPU milliseconds per id", "milliseconds"), ("cache, bytes per id", "cache_bytes"))
        ):
            axes = figure.add_subplot(1, 2, number + 1)
            for side, (label, colour) in enumerate((("before", "#888888"), ("after", "#1f5f8b"))):
                axes.plot(contexts, [getattr(speed, of)[side] for speed in speeds], "o-", color=colour, label=label)
            axes.set(title=what, xlabel="context, ids", ylim=(0, None))
            axes.legend(fontsize=8)
        figure.tight_layout()
        save(figure, checked_path(path))
