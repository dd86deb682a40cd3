"""`regard train translation`: settings, data, tokeniser, model, and the loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.cli import run_settings
from regard.cli.console import say
from regard.cli.samples import translations
from regard.cli.training_runs import Training, conclude, describe_model, describe_steps, share_of_work
from regard.cli.translator_settings import Settings
from regard.text import Tokeniser
from regard.text.translation_data import PRONOUNS, TranslationData, load_translation_data
from regard.training import TrainingResult, check_run_folder
from regard.training.translation import TranslationTask


def run_training(
    out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool, tensorboard: bool = False, samples: bool = False
) -> None:
    """The command: say what is read, train, say what came of it."""
    check_run_folder(out)
    settings = decide_settings(out, given, resume)
    data = load_translation_data(settings.data, settings.valid, settings.seed)
    for note in data.notes:
        say(note)
    result = train_translator(out, settings, data, resume=resume, cpu=cpu, tensorboard=tensorboard, samples=samples)
    found = None if result.valid_loss is None else f"best validation {result.valid_loss:.4f}"
    conclude("translation", out, result, found)


def decide_settings(out: Path, given: Mapping[str, Any], resume: bool) -> Settings:
    """The settings of a new run, or those of the run in `out` with what may change changed; see there."""
    data = f"a file of sentence pairs, or '{PRONOUNS}' for the embedded corpus"
    return run_settings.decide_settings(Settings, out, given, resume, data)


def train_translator(
    out: Path,
    settings: Settings,
    data: TranslationData,
    *,
    resume: bool,
    cpu: bool = False,
    tokeniser: Tokeniser | None = None,
    tensorboard: bool = False,
    samples: bool = False,
) -> TrainingResult:
    """Train what the settings describe on the data, into the folder `out`, with its curves and test split."""
    tokeniser = tokeniser or learn_tokeniser(settings, data)
    torch.manual_seed(settings.seed)
    model = settings.new_model(tokeniser.vocab_size)
    task = TranslationTask(
        data.train, data.valid, tokeniser,
        batch_tokens=settings.batch_tokens, label_smoothing=settings.label_smoothing, seed=settings.seed,
        **share_of_work(),
    )  # fmt: skip
    if task.left_out:
        say(f"{task.left_out:,} pairs with more sub-words than a batch or 256 hold were left out of training")
    say(f"{describe_model(settings.model, model, tokeniser)}; {describe_steps(settings, task.batches.steps_per_epoch)}")
    training = Training(
        out=out, settings=settings, model=model, task=task, tokeniser=tokeniser, test=tuple(data.test),
        samples=translations(tokeniser, data.valid) if samples else None,
    )  # fmt: skip
    return training.go(resume=resume, cpu=cpu, tensorboard=tensorboard)


def learn_tokeniser(settings: Settings, data: TranslationData) -> Tokeniser:
    """One vocabulary for both sides of the training pairs."""
    return Tokeniser.train((text for pair in data.train for text in (pair.source, pair.target)), settings.vocab_size)
