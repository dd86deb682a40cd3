"""`regard train translation`: settings, data, tokeniser, model, and the loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import duration, say
from regard.cli.progress import training_progress
from regard.cli.runs import read_settings, write_run
from regard.cli.translator_settings import Settings, new_settings
from regard.decoding.translator import TOKENISER_FILE
from regard.errors import ArgumentError, RegardError
from regard.models.kinds import TRANSLATORS
from regard.models.storage import read_checkpoints
from regard.text import Tokeniser
from regard.text.translation_data import TranslationData, load_translation_data
from regard.training import TrainingResult, draw_curves, train
from regard.training.translation import TranslationTask

MAY_CHANGE = ("steps", "minutes", "patience")  # of a run that goes on


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
        return new_settings(chosen)
    known = {field.name for field in fields(Settings)}
    before = Settings(**{name: value for name, value in kept.items() if name in known})
    after = Settings(**{**asdict(before), **chosen})
    changed = [name for name in known if getattr(before, name) != getattr(after, name) and name not in MAY_CHANGE]
    if changed:
        told = ", ".join(f"{name} {getattr(before, name)!r} -> {getattr(after, name)!r}" for name in sorted(changed))
        raise ArgumentError(f"{out} was begun with other settings ({told}); leave them out, or begin another run")
    return after


def train_translator(
    out: Path,
    settings: Settings,
    data: TranslationData,
    *,
    resume: bool,
    cpu: bool = False,
    tokeniser: Tokeniser | None = None,
) -> TrainingResult:
    """Train what the settings describe on the data, into the folder `out`, with its curves and test split."""
    tokeniser = tokeniser or learn_tokeniser(settings, data)
    torch.manual_seed(settings.seed)
    model = settings.new_model(tokeniser.vocab_size)
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
    say(f"{settings.model}: {numbers:,} numbers, {tokeniser.vocab_size:,} sub-words; {settings.steps:,} steps of up to "
        f"{settings.batch_tokens * settings.accumulate:,} ids, {task.batches.steps_per_epoch:,} an epoch")  # fmt: skip
    kind = next(kind for kind, made in TRANSLATORS.items() if isinstance(model, made))
    with training_progress() as progress:
        result = train(
            model, task, settings.training_config(), out, kind=kind, model_config=model.config.to_dict(),
            extra_files={TOKENISER_FILE: tokeniser.to_json()}, resume=resume, progress=progress, cpu=cpu,
        )  # fmt: skip
    draw_curves(out / "log.jsonl", out / "curves.png")
    return result


def learn_tokeniser(settings: Settings, data: TranslationData) -> Tokeniser:
    """One vocabulary for both sides of the training pairs."""
    return Tokeniser.train((text for pair in data.train for text in (pair.source, pair.target)), settings.vocab_size)


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
