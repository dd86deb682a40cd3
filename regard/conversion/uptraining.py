"""A conversion whose loss is measured on a text, and brought back by training on the rest of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.conversion.folders import check_apart, check_out, convert_kv_heads, is_hugging_face
from regard.conversion.heads import METHODS, Conversion, row
from regard.conversion.own_models import Converted, Model, load_converted
from regard.decoding.loading import TOKENISER_FILE
from regard.errors import ArgumentError, NotFoundError, UnsupportedError
from regard.models import LanguageModel, TextEncoder, TranslationTransformer
from regard.text import Tokeniser
from regard.text.translation_data import load_translation_data
from regard.training import Progress, Task, TrainingConfig, TrainingResult, check_run_folder, train
from regard.training.config import setting
from regard.training.recipes.language import LanguageModelTraining, LanguageTask, read_running_text
from regard.training.recipes.masked_words import MaskedWordTask, read_lines_of_text
from regard.training.recipes.recipe import Tell, share_of_work, silent
from regard.training.recipes.settings import RunConfig
from regard.training.recipes.translation import TranslationTask

Showing = Callable[[], AbstractContextManager[Progress | None]]
"""Makes a context that gives a function for the events of a training."""


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
            back = "" if self.recovered is None else f": {self.recovered:.0%} of what was lost is back"
            remark = f"{self.uptrained:.4f} after {self.steps:,} steps{back}"
        return row("loss, nats per id", f"{self.before:.4f}", f"{self.converted:.4f}", remark)


@dataclass(frozen=True)
class Uptrained:
    """A conversion, its losses where a text was given, and how the training ended where there was one."""

    report: Conversion
    losses: Losses | None = None
    training: TrainingResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, losses in nats per id."""
        losses = self.losses
        measured = None if losses is None else {**asdict(losses), "recovered": losses.recovered, "unit": "nats an id"}
        return {**self.report.to_dict(), "losses": measured}

    def __str__(self) -> str:
        return str(self.report) if self.losses is None else f"{self.report}\n{self.losses}"


class Uptraining:
    """Convert the key/value heads of a model, measure what that loses, and train it back as far as is asked.

    Args:
        config: the settings.
        tell: is handed remarks about what is read.
        showing: shows the events of the training.

    Source: GQA, Ainslie et al. 2023, section 2.1.

    >>> Uptraining(Uptraining.Config(steps=5)).convert("model", "out", 2)
    Traceback (most recent call last):
    regard.errors.ArgumentError: --uptrain-steps needs --text: a file to learn from
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """A text to measure on, and how long to learn from the rest of it.

        Args:
            method: what becomes of a group's heads: mean or first.
            texts: measure the loss on the last part of these; may be repeated.
            steps: then train this many steps on the rest; the same command goes on.
            learning_rate: peak of the learning rate; try that of the first training.
            batch_tokens: ids in a batch at most.
            block: ids in a row, for a language model.
            seed: seed of the order of the batches.
            cpu: stay on the CPU.
        """

        method: str = setting(METHODS[0])
        texts: tuple[str, ...] = setting((), option="--text", metavar="FILE")
        steps: int | None = setting(None, option="--uptrain-steps", least=1)
        learning_rate: float = setting(TrainingConfig.learning_rate)
        batch_tokens: int = setting(RunConfig.batch_tokens, least=16)
        block: int = setting(LanguageModelTraining.Config.block, least=2)
        seed: int = setting(TrainingConfig.seed, least=0)
        cpu: bool = setting(False)

        def training_config(self) -> TrainingConfig:
            assert self.steps is not None
            often = max(1, self.steps // 5)
            return TrainingConfig(
                steps=self.steps, learning_rate=self.learning_rate, warmup_steps=self.steps // 10,
                schedule=RunConfig.schedule, weight_decay=RunConfig.weight_decay, validate_every=often,
                save_every=often, seed=self.seed,
            )  # fmt: skip

    def __init__(self, config: Config, tell: Tell = silent, showing: Showing = nullcontext) -> None:
        self.config, self.tell, self.showing = config, tell, showing

    def convert(self, folder: str | Path, out: str | Path, kv_heads: int) -> Uptrained:
        """Convert, measure and train as far as the settings ask.

        Args:
            folder: of a run, a saved model or, without texts, a Llama-like model.
            out: a new folder; the same call goes on with the run that is there.
            kv_heads: key/value heads of each layer.

        Raises:
            ArgumentError: steps without texts, or a number of heads that cannot be.
            UnsupportedError: texts for a model that is not ours.
            CheckpointError: a model without a tokeniser, or a folder that holds something else.
        """
        config, folder, out = self.config, Path(folder), Path(out)
        if not config.texts:
            if config.steps is not None:
                raise ArgumentError("--uptrain-steps needs --text: a file to learn from")
            return Uptrained(convert_kv_heads(folder, out, kv_heads, method=config.method))
        if is_hugging_face(folder):
            raise UnsupportedError(
                "--text measures and trains our own models; convert the folder without it, and measure it where it is "
                "used"
            )
        if config.steps is None:
            check_out(folder, out)
        else:
            check_apart(folder, out)
            check_run_folder(out)  # a run in it is gone on with
        converted = load_converted(folder, kv_heads, config.method)
        task = held_out_task(converted, config, self.tell)
        losses = Losses(held_out_loss(converted.before, task), held_out_loss(converted.after, task))
        if config.steps is None:
            converted.save(out)
            return Uptrained(converted.report, losses)
        result = self._train(converted, task, out)
        losses = Losses(losses.before, losses.converted, result.valid_loss, result.steps)
        return Uptrained(converted.report, losses, result)

    def _train(self, converted: Converted, task: Task, out: Path) -> TrainingResult:
        model = converted.after
        with self.showing() as progress:
            return train(
                model, task, self.config.training_config(), out, kind=converted.report.kind,
                model_config=model.config.to_dict(), extra_files=converted.files, resume=True, progress=progress,
                cpu=self.config.cpu,
            )  # fmt: skip


def held_out_task(converted: Converted, config: Uptraining.Config, tell: Tell = silent) -> Task:
    """The task that a model was trained for, on the texts of the settings; their last part is held out.

    Raises:
        UnsupportedError: a model for which there is none.
        CheckpointError: a model without a tokeniser.
    """
    if TOKENISER_FILE not in converted.files:
        raise NotFoundError(f"this model has no {TOKENISER_FILE} beside it, so it cannot read --text")
    tokeniser = Tokeniser.from_json(converted.files[TOKENISER_FILE])
    texts = RunConfig(data=config.texts, seed=config.seed)
    shared: dict[str, Any] = {"batch_tokens": config.batch_tokens, "seed": config.seed, **share_of_work()}
    model = converted.before
    if isinstance(model, LanguageModel):
        longest = model.config.max_length if model.config.positions == "learned" else config.block
        block = min(config.block, longest, config.batch_tokens)
        return LanguageTask(*read_running_text(texts, tell), tokeniser, block=block, **shared)
    if isinstance(model, TranslationTransformer):
        data = load_translation_data(config.texts, (), config.seed)
        return TranslationTask(data.train, data.valid, tokeniser, **shared)
    assert isinstance(model, TextEncoder)
    if model.config.head != "words":
        raise UnsupportedError(
            f"this encoder's head is {model.config.head!r}; --text hides words and needs 'words'. Convert it without "
            f"--text, and go on with: regard train classifier --from"
        )
    return MaskedWordTask(*read_lines_of_text(texts, tell), tokeniser, **shared)


@torch.no_grad()
def held_out_loss(model: Model, task: Task) -> float:
    """The plain cross entropy on what the task holds out, in nats per id.

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
