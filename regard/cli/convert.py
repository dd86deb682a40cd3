"""`regard convert kv-heads`: the conversion, what it saves, what it loses on a text, and what training brings back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import out_json, out_lines, say
from regard.cli.progress import training_progress
from regard.cli.run_settings import RunSettings
from regard.cli.train_encoder import read_lines_of_text
from regard.cli.train_language import read_running_text
from regard.cli.training_runs import share_of_work
from regard.conversion import Conversion, Converted, convert_kv_heads, load_converted
from regard.conversion.folders import check_apart, check_out, is_hugging_face
from regard.conversion.heads import row
from regard.conversion.own_models import Model
from regard.decoding.loading import TOKENISER_FILE
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.models import LanguageModel, TextEncoder, TranslationTransformer
from regard.text import Tokeniser
from regard.text.translation_data import load_translation_data
from regard.training import Task, TrainingConfig, TrainingResult, check_run_folder, train
from regard.training.encoder import MaskedWordTask
from regard.training.language import LanguageTask
from regard.training.translation import TranslationTask


@dataclass(frozen=True, kw_only=True)
class Uptraining:
    """A text to measure on, and how long to learn from the rest of it, if at all."""

    texts: tuple[str, ...] = ()
    steps: int | None = None
    learning_rate: float = 1e-3
    batch_tokens: int = 4096
    block: int = 256
    seed: int = 0
    cpu: bool = False

    def training_config(self) -> TrainingConfig:
        assert self.steps is not None
        often = max(1, self.steps // 5)
        return TrainingConfig(
            steps=self.steps, learning_rate=self.learning_rate, warmup_steps=self.steps // 10, schedule="cosine",
            weight_decay=0.01, validate_every=often, save_every=often, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class Losses:
    """On the held-out text, in nats an id: of the model as it was, as it was converted, and after training."""

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
            back = "" if self.recovered is None else f": {self.recovered:.0%} of what was lost is back"
            remark = f"{self.uptrained:.4f} after {self.steps:,} steps{back}"
        return row("loss, nats an id", f"{self.before:.4f}", f"{self.converted:.4f}", remark)


def run_convert_kv_heads(
    folder: Path, out: Path, *, kv_heads: int, method: str, uptraining: Uptraining, as_json: bool
) -> None:
    """The command: convert, measure and train as far as was asked, and show it."""
    if not uptraining.texts:
        if uptraining.steps is not None:
            raise ArgumentError("--uptrain-steps needs --text: a file to learn from")
        _show(convert_kv_heads(folder, out, kv_heads, method=method), None, out, as_json)
        return
    if is_hugging_face(folder):
        raise UnsupportedError(
            "--text measures and trains our own models; convert the folder without it, and measure it where it is used"
        )
    if uptraining.steps is None:
        check_out(folder, out)
    else:
        check_apart(folder, out)
        check_run_folder(out)  # a run that stands there is gone on with
    converted = load_converted(folder, kv_heads, method)
    task = held_out_task(converted, uptraining)
    losses = Losses(held_out_loss(converted.before, task), held_out_loss(converted.after, task))
    if uptraining.steps is None:
        converted.save(out)
    else:
        result = uptrain(converted, task, uptraining, out)
        losses = Losses(losses.before, losses.converted, result.valid_loss, result.steps)
    _show(converted.report, losses, out, as_json)


def held_out_task(converted: Converted, uptraining: Uptraining) -> Task:
    """The task that a model was trained for, on these texts: a part to learn from, the last to measure on.

    Raises:
        UnsupportedError: a model for which there is none.
        CheckpointError: a model without a tokeniser.
    """
    if TOKENISER_FILE not in converted.files:
        raise CheckpointError(f"this model has no {TOKENISER_FILE} beside it, so it cannot read --text")
    tokeniser = Tokeniser.from_json(converted.files[TOKENISER_FILE])
    settings = RunSettings(data=uptraining.texts, seed=uptraining.seed)
    shared: dict[str, Any] = {"batch_tokens": uptraining.batch_tokens, "seed": uptraining.seed, **share_of_work()}
    model = converted.before
    if isinstance(model, LanguageModel):
        longest = model.config.max_length if model.config.positions == "learned" else uptraining.block
        block = min(uptraining.block, longest, uptraining.batch_tokens)
        return LanguageTask(*read_running_text(settings), tokeniser, block=block, **shared)
    if isinstance(model, TranslationTransformer):
        data = load_translation_data(uptraining.texts, (), uptraining.seed)
        return TranslationTask(data.train, data.valid, tokeniser, **shared)
    assert isinstance(model, TextEncoder)
    if model.config.head != "words":
        raise UnsupportedError(
            f"this encoder's head is {model.config.head!r}; --text hides words and needs 'words'. Convert it without "
            f"--text, and go on with: regard train classifier --from"
        )
    return MaskedWordTask(*read_lines_of_text(settings), tokeniser, **shared)


@torch.no_grad()
def held_out_loss(model: Model, task: Task) -> float:
    """The plain cross entropy on what the task holds out, in nats an id.

    Raises:
        ArgumentError: nothing is held out.
    """
    model.eval()
    loss, ids = 0.0, 0
    for batch in task.validation_batches():
        one, count = task.validation_loss(model, batch)
        loss, ids = loss + float(one), ids + int(count)
    if not ids:
        raise ArgumentError("--text is too short: none of it is left to measure on")
    return loss / ids


def uptrain(converted: Converted, task: Task, uptraining: Uptraining, out: Path) -> TrainingResult:
    """Train the converted model in the folder of a run; given again, the same command goes on.

    Raises:
        RegardError: it was interrupted.
    """
    model = converted.after
    with training_progress() as progress:
        result = train(
            model, task, uptraining.training_config(), out, kind=converted.report.kind,
            model_config=model.config.to_dict(), extra_files=converted.files, resume=True, progress=progress,
            cpu=uptraining.cpu,
        )  # fmt: skip
    if result.stopped == "interrupted":
        raise RegardError(f"interrupted after {result.steps} of {uptraining.steps} steps; the same command goes on")
    return result


def _show(report: Conversion, losses: Losses | None, out: Path, as_json: bool) -> None:
    if as_json:
        told = None if losses is None else {**asdict(losses), "recovered": losses.recovered, "unit": "nats an id"}
        out_json(json.dumps({**report.to_dict(), "losses": told, "out": str(out)}))
        return
    out_lines(str(report) if losses is None else f"{report}\n{losses}")
    done = {"mean": "neighbours pooled by their mean", "first": "the first of each group kept"}.get(report.method)
    checked = (
        ""
        if report.difference is None
        else f"; with its heads repeated it says the same (off by {report.difference:.0e})"
    )
    say(f"{done or 'heads repeated'}{checked}; the model is in {out}")
