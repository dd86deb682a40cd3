"""A conversion whose loss is measured on a text, and brought back by training on the rest of it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError, UnsupportedError
from regard_lab.conversion.folders import (
    check_apart,
    check_out,
    convert_kv_heads,
    earlier_conversion,
    is_hugging_face,
    method_of,
)
from regard_lab.conversion.heads import Conversion, row
from regard_lab.conversion.latents import LatentSizes, load_latent
from regard_lab.conversion.own_models import Converted, load_converted, load_original
from regard_lab.conversion.pretrained import PretrainedConversion, load_folder, row_ids
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.kinds import Transformer
from regard_lab.text import PAD, Tokeniser
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import load_translation_data
from regard_lab.training import Task, TrainingConfig, TrainingResult, train
from regard_lab.training.config import setting
from regard_lab.training.engine import Batch
from regard_lab.training.events import Showing
from regard_lab.training.folders import check_run_folder
from regard_lab.training.recipes.language import (
    LanguageModelTraining,
    LanguageTask,
    read_running_text,
)
from regard_lab.training.recipes.masked_words import MaskedWordTask, read_lines_of_text
from regard_lab.training.recipes.recipe import RunConfig
from regard_lab.training.recipes.run_folder import read_settings
from regard_lab.training.recipes.translation import TranslationTask

CALIBRATION_BATCHES = 8  # from which the inputs of the layers are known
MEASURED_ROWS = 8  # of the held-out text; their logits are kept while the other model is loaded
LARGEST_EXPONENT = 700.0  # of a loss whose perplexity is a number


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
        perplexities = [math.exp(min(loss, LARGEST_EXPONENT)) for loss in self.loss]
        return {**asdict(self), "perplexity": perplexities}


class Predictions(NamedTuple):
    """Logits of the original and of the converted model (ids, vocab_size), and the ids that follow (ids,)."""

    original: torch.Tensor
    converted: torch.Tensor
    targets: torch.Tensor


def agreement(batches: Iterable[Predictions]) -> PredictionAgreement:
    """Compare the predictions of two models."""
    loss_of_original = 0.0
    loss_of_converted = 0.0
    divergence = 0.0
    same = 0
    ids = 0
    for original, converted, targets in batches:
        log_p = original.float().log_softmax(-1)
        log_q = converted.float().log_softmax(-1)
        loss_of_original += float(F.nll_loss(log_p, targets, reduction="sum"))
        loss_of_converted += float(F.nll_loss(log_q, targets, reduction="sum"))
        divergence += float((log_p.exp() * (log_p - log_q)).sum())
        same += int((original.argmax(-1) == converted.argmax(-1)).sum())
        ids += len(targets)
    count = max(1, ids)
    loss = (loss_of_original / count, loss_of_converted / count)
    return PredictionAgreement(ids, loss, divergence / count, same / count)


@torch.no_grad()
def agreement_on_task(model: nn.Module, converted: nn.Module, task: Task) -> PredictionAgreement:
    """The agreement of two models of regard on what a task holds out."""
    model.eval()
    converted.eval()

    def predictions() -> Iterator[Predictions]:
        for batch in task.validation_batches():
            original_logits = _logits(model, task, batch)
            converted_logits = _logits(converted, task, batch)
            following = getattr(batch, "next", None)
            if following is None:  # hidden words, of which every logit counts
                yield Predictions(original_logits, converted_logits, batch.words)
            else:
                counts = following != PAD
                yield Predictions(
                    original_logits[counts], converted_logits[counts], following[counts]
                )

    return agreement(predictions())


def _logits(model: nn.Module, task: Task, batch: Batch) -> torch.Tensor:
    """What the model returns to the loss of a task."""
    outputs: list[torch.Tensor] = []
    with model.register_forward_hook(lambda module, inputs, output: outputs.append(output)):
        task.validation_loss(model, batch)
    return outputs[0]


@torch.no_grad()
def agreement_of_folders(folder: Path, out: Path, ids: torch.Tensor) -> PredictionAgreement:
    """The agreement of the models of two folders on ids (rows, length); one of them is in memory at a time."""
    rows = ids[:MEASURED_ROWS]
    original_logits = _logits_of_folder(folder, rows)
    converted_logits = _logits_of_folder(out, rows)
    targets = [row[1:] for row in rows]
    return agreement(map(Predictions, original_logits, converted_logits, targets))


def _logits_of_folder(folder: Path, rows: torch.Tensor) -> list[torch.Tensor]:
    """The logits for each row but those of its last id."""
    model = load_folder(folder)
    return [model(row[None], use_cache=False).logits[0, :-1].float() for row in rows]


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
            remark = f"{self.uptrained:.4f} after {count_of(self.steps, 'steps', ',')}"
            if self.recovered is not None:
                remark += f": {_say_recovered(self.recovered)}"
        return row("loss, nats per id", f"{self.before:.4f}", f"{self.converted:.4f}", remark)


def _say_recovered(share: float) -> str:
    if share < 0:
        return "more than before them; try another learning rate"
    if share > 1:
        return "lower than before, since these steps also trained what the first training left"
    return f"{share:.0%} of what was lost is back"


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
        before, converted = self.agreement.loss
        if self.training is None:
            return Losses(before, converted)
        return Losses(before, converted, self.training.valid_loss, self.training.steps)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, losses in nats per id."""
        values = {**self.report.to_dict(), "losses": None, "predictions": None}
        losses = self.losses
        if losses is not None:
            recovered = losses.recovered
            values["losses"] = {**asdict(losses), "recovered": recovered, "unit": "nats an id"}
        if self.agreement is not None:
            values["predictions"] = self.agreement.to_dict()
        return values

    def __str__(self) -> str:
        return str(self.report) if self.losses is None else f"{self.report}\n{self.losses}"


class Uptraining:
    """Convert the keys and values of a model, measure what that loses, and train it back as far as is wanted.

    Args:
        tell: receives remarks about what is read and what is replaced.

    Source: GQA, Ainslie et al. 2023, section 2.1.

    >>> Uptraining(Uptraining.Config(steps=5)).convert("model", "out", 2)
    Traceback (most recent call last):
    regard.errors.ArgumentError: --uptrain-steps needs --text: a file to learn from
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """A text to measure on, and how long to learn from the rest of it.

        Args:
            method: how heads are pooled: mean, first, or align, which rotates and regroups them first.
            texts: files of text: a conversion is calibrated on the first part, and the loss is measured on the last;
                may be repeated.
            steps: then train this many steps on the first part; if interrupted, the same command goes on.
            learning_rate: peak of the learning rate; try that of the first training.
            batch_tokens: largest number of ids in a batch.
            block: ids in a row, for a language model.
            seed: seed of the order of the batches.
            cpu: stay on the CPU.
        """

        method: str | None = setting(None, shown="align with --text, otherwise mean")
        texts: tuple[str, ...] = setting((), option="--text", metavar="FILE")
        steps: int | None = setting(None, option="--uptrain-steps", least=1)
        learning_rate: float = setting(TrainingConfig.learning_rate)
        batch_tokens: int = setting(RunConfig.batch_tokens, least=16)
        block: int | None = setting(
            None, least=2, shown=f"that of the run, or {LanguageModelTraining.Config.block}"
        )
        seed: int = setting(TrainingConfig.seed, least=0)
        cpu: bool = setting(False)

        def training_config(self) -> TrainingConfig:
            assert self.steps is not None
            fifth = max(1, self.steps // 5)
            return TrainingConfig(
                steps=self.steps,
                learning_rate=self.learning_rate,
                warmup_steps=self.steps // 10,
                schedule=RunConfig.schedule,
                weight_decay=RunConfig.weight_decay,
                validate_every=fifth,
                save_every=fifth,
                seed=self.seed,
            )

    def __init__(self, config: Config, tell: Tell = silent, showing: Showing = nullcontext) -> None:
        self.config = config
        self.tell = tell
        self.showing = showing

    def convert(self, folder: str | Path, out: str | Path, to: int | LatentSizes) -> Uptrained:
        """Convert, measure and train as far as the settings want.

        Args:
            folder: of a run, a saved model or, without steps, a Hugging Face model.
            out: a new folder; the same call goes on with the run that is there.
            to: key/value heads of each layer, or the sizes of its latents.
        """
        folder = Path(folder)
        out = Path(out)
        self._check(folder, out)
        if isinstance(to, LatentSizes):
            return self._convert_to_latents(folder, out, to)
        method = method_of(self.config.method, self.config.texts or None)
        if not self.config.texts:
            return Uptrained(convert_kv_heads(folder, out, to, method=method))
        if is_hugging_face(folder):
            return self._convert_folder(folder, out, to, method)
        load = partial(load_converted, folder, to, method)
        return self._convert_and_train(folder, out, load, is_calibrated=method == "align")

    def _convert_to_latents(self, folder: Path, out: Path, sizes: LatentSizes) -> Uptrained:
        if is_hugging_face(folder):
            raise UnsupportedError(
                f"{folder} is a folder of Hugging Face; latents are made of our own language models"
            )
        load = partial(load_latent, folder, sizes)
        if self.config.texts:
            return self._convert_and_train(folder, out, load, is_calibrated=True)
        converted = load()
        converted.save(out)
        return Uptrained(converted.report)

    def _convert_and_train(
        self, folder: Path, out: Path, load: Callable[..., Converted], is_calibrated: bool
    ) -> Uptrained:
        """Convert a model of ours by `load`, measure it on the texts, and train it for the steps of the settings."""
        saved, model = load_original(folder)
        task = held_out_task(model, saved.extra_files, self._with_block_of_run(folder), self.tell)

        def read_batches(model: Any) -> None:
            for index in range(CALIBRATION_BATCHES):
                task.loss(model, task.batch(index))

        converted = load(calibration=read_batches if is_calibrated else None)
        measured = agreement_on_task(converted.before, converted.after, task)
        if not measured.ids:
            raise ArgumentError("--text is too short: none of it is left to measure on")
        if self.config.steps is None:
            converted.save(out)
            return Uptrained(converted.report, measured)

        with self.showing() as progress:
            result = train(
                converted.after,
                task,
                self.config.training_config(),
                out,
                kind=converted.report.kind,
                model_config=converted.after.config.to_dict(),
                extra_files=converted.files,
                resume=True,
                progress=progress,
                cpu=self.config.cpu,
            )
        return Uptrained(converted.report, measured, result)

    def _with_block_of_run(self, folder: Path) -> Config:
        """The settings, with the block of the training where the folder is a run of ours."""
        block_of_run = (read_settings(folder) or {}).get("block")
        if self.config.block or not isinstance(block_of_run, int):
            return self.config
        return replace(self.config, block=block_of_run)

    def _check(self, folder: Path, out: Path) -> None:
        """Refuse settings that exclude each other, and an `out` that holds something else."""
        config = self.config
        if config.steps is not None and not config.texts:
            raise ArgumentError("--uptrain-steps needs --text: a file to learn from")
        if config.steps is None:
            check_out(folder, out)
            earlier = earlier_conversion(out)
            if earlier:
                self.tell(
                    f"{out} holds an earlier conversion ({earlier}); it is replaced once this one is complete"
                )
            return
        if is_hugging_face(folder):
            raise UnsupportedError(
                "--uptrain-steps trains our own models; convert the folder without it, and train it where it is used"
            )
        check_apart(folder, out)
        check_run_folder(out)  # a run in it is gone on with

    def _convert_folder(self, folder: Path, out: Path, kv_heads: int, method: str) -> Uptrained:
        """Convert a folder of Hugging Face, calibrated and measured on the texts."""
        conversion = PretrainedConversion(folder, kv_heads, method)
        texts = RunConfig(data=self.config.texts, seed=self.config.seed)
        train_texts, held_out_texts = read_running_text(texts, self.tell)
        ids = row_ids(folder, "\n".join(train_texts))
        held_out_ids = row_ids(folder, "\n".join(held_out_texts))
        conversion.convert(lambda model: model(ids))
        conversion.save(out)
        return Uptrained(conversion.report(), agreement_of_folders(folder, out, held_out_ids))


def held_out_task(
    model: Transformer, files: Mapping[str, str], config: Uptraining.Config, tell: Tell = silent
) -> Task:
    """The task that a model was trained for, on the texts of the settings; their last part is held out."""
    if TOKENISER_FILE not in files:
        raise NotFoundError(
            f"this model has no {TOKENISER_FILE} beside it, so it cannot read --text"
        )
    tokeniser = Tokeniser.from_json(files[TOKENISER_FILE])
    texts = RunConfig(data=config.texts, seed=config.seed)
    shared: dict[str, Any] = {
        "batch_tokens": config.batch_tokens,
        "seed": config.seed,
        **share_of_work(),
    }
    if isinstance(model, LanguageModel):
        block = min(config.block or LanguageModelTraining.Config.block, config.batch_tokens)
        if model.config.positions == "learned":
            block = min(block, model.config.max_length)
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
