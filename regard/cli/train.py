"""`regard train translation`: settings, data, tokeniser, model, and the loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import duration, say
from regard.cli.progress import training_progress
from regard.cli.runs import read_settings, write_run
from regard.decoding.translator import TOKENISER_FILE
from regard.errors import ArgumentError, RegardError
from regard.models import TranslationTransformer
from regard.models.storage import read_checkpoints
from regard.models.translation_transformer import KIND
from regard.text import Tokeniser
from regard.text.translation_data import TranslationData, load_translation_data
from regard.training import TrainingConfig, TrainingResult, draw_curves, train
from regard.training.translation import TranslationTask

MODELS = ("transformer",)
MAY_CHANGE = ("steps", "minutes", "patience")  # of a run that goes on


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides a training, as it is kept in the run."""

    data: tuple[str, ...]
    valid: tuple[str, ...] = ()
    model: str = "transformer"
    steps: int = 10_000
    minutes: float | None = None
    attention: str = "full"
    decoder_attention: str = "causal"
    cross_attention: str = "full"
    kv_heads: int | None = None
    dim: int = 256
    heads: int = 4
    layers: int = 3
    norm: str = "pre"
    positions: str = "sinusoidal"
    dropout: float = 0.1
    vocab_size: int = 8_000
    batch_tokens: int = 2_048
    learning_rate: float = 1e-3
    warmup_steps: int = 400
    schedule: str = "inverse_square_root"
    label_smoothing: float = 0.1
    accumulate: int = 1
    validate_every: int = 250
    patience: int | None = None
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ArgumentError(f"model {self.model!r} does not exist; there are {', '.join(MODELS)}")
        for name in ("data", "valid"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def model_config(self, vocab_size: int) -> TranslationTransformer.Config:
        return TranslationTransformer.Config(
            vocab_size=vocab_size, dim=self.dim, heads=self.heads, norm=self.norm, positions=self.positions,
            encoder_layers=self.layers, decoder_layers=self.layers, dropout=self.dropout,
            encoder_kv_heads=self.kv_heads, decoder_kv_heads=self.kv_heads, cross_kv_heads=self.kv_heads,
            encoder_pattern=self.attention, decoder_pattern=self.decoder_attention, cross_pattern=self.cross_attention,
        )  # fmt: skip

    def training_config(self) -> TrainingConfig:
        return TrainingConfig(
            steps=self.steps, minutes=self.minutes, learning_rate=self.learning_rate, warmup_steps=self.warmup_steps,
            schedule=self.schedule, accumulate=self.accumulate, validate_every=self.validate_every,
            save_every=self.validate_every, patience=self.patience, precision=self.precision, seed=self.seed,
        )  # fmt: skip


def run_training(out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool) -> None:
    """The command: say what is read, train, say what came of it."""
    settings = decide_settings(out, given, resume)
    data = load_translation_data(settings.data, settings.valid, settings.seed)
    for note in data.notes:
        say(note)
    result = train_translator(out, settings, data, resume=resume, cpu=cpu)
    if result.stopped == "interrupted":
        raise RegardError(_verdict(out, result))
    say(_verdict(out, result))


def decide_settings(out: Path, given: Mapping[str, Any], resume: bool) -> Settings:
    """The settings of a new run, or those of the run in `out` with what may change changed.

    Raises:
        ArgumentError: no data, or settings that the run in `out` was not begun with.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    kept = read_settings(out) if resume else None
    if kept is None:
        if not chosen.get("data"):
            raise ArgumentError(
                "--data is missing: name a file of sentence pairs, or 'pronouns' for the embedded corpus"
            )
        return Settings(**chosen)
    known = {field.name for field in fields(Settings)}
    before = Settings(**{name: value for name, value in kept.items() if name in known})
    after = Settings(**{**asdict(before), **chosen})
    changed = [name for name in known if getattr(before, name) != getattr(after, name) and name not in MAY_CHANGE]
    if changed:
        told = ", ".join(f"{name} {getattr(before, name)!r} -> {getattr(after, name)!r}" for name in sorted(changed))
        raise ArgumentError(f"{out} was begun with other settings ({told}); leave them out, or begin another run")
    return after


def train_translator(
    out: Path, settings: Settings, data: TranslationData, *, resume: bool, cpu: bool = False
) -> TrainingResult:
    """Train what the settings describe on the data, into the folder `out`, with its curves and test split."""
    torch.manual_seed(settings.seed)
    tokeniser = Tokeniser.train(
        (text for pair in data.train for text in (pair.source, pair.target)), settings.vocab_size
    )
    config = settings.model_config(tokeniser.vocab_size)
    model = TranslationTransformer(config)
    task = TranslationTask(
        data.train, data.valid, tokeniser,
        batch_tokens=settings.batch_tokens, label_smoothing=settings.label_smoothing, seed=settings.seed,
        world=int(os.environ.get("WORLD_SIZE", "1")), rank=int(os.environ.get("RANK", "0")),
    )  # fmt: skip
    if task.left_out:
        say(f"{task.left_out:,} pairs with more sub-words than a batch or 256 hold were left out of training")
    begun = out.is_dir() and read_checkpoints(out) is not None
    if not begun:
        write_run(out, asdict(settings), data.test)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    say(f"a Transformer of {numbers:,} numbers, {tokeniser.vocab_size:,} sub-words; {settings.steps:,} steps of up to "
        f"{settings.batch_tokens * settings.accumulate:,} ids, {task.batches.steps_per_epoch:,} an epoch")  # fmt: skip
    with training_progress() as progress:
        result = train(
            model, task, settings.training_config(), out, kind=KIND, model_config=config.to_dict(),
            extra_files={TOKENISER_FILE: tokeniser.to_json()}, resume=resume, progress=progress, cpu=cpu,
        )  # fmt: skip
    draw_curves(out / "log.jsonl", out / "curves.png")
    return result


def _verdict(out: Path, result: TrainingResult) -> str:
    reasons = {
        "steps": "all steps are done",
        "minutes": "the minutes are over",
        "patience": "validation stopped improving",
        "interrupted": f"interrupted; go on with: regard train translation --out {out} --resume",
    }
    valid = "" if result.valid_loss is None else f", best validation {result.valid_loss:.4f} at step {result.best_step}"
    return (
        f"{reasons[result.stopped]}: {result.steps:,} steps{valid}, {duration(result.wall_seconds)} "
        f"({result.cpu_seconds:,.0f} CPU seconds); the run is in {out}"
    )
