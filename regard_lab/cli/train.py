"""`regard train ...` and `regard average`: a recipe of the library, its options, and what came of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from regard.arguments import count_of
from regard_lab.cli.console import StoppedError, duration, keeping, say
from regard_lab.cli.options import with_settings
from regard_lab.cli.progress import training_progress
from regard_lab.models.storage import CHECKPOINTS_FILE
from regard_lab.training import TrainingResult, average_checkpoints
from regard_lab.training.fingerprint import MAY_CHANGE
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    Recipe,
    TranslationTraining,
)
from regard_lab.training.recipes.choosing import SIZES
from regard_lab.training.recipes.recipe import share_of_work
from regard_lab.training.recipes.run_folder import check_still_there

MAY_BE_GIVEN = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
Out = Annotated[Path, typer.Option(metavar="RUN", help="The folder of the run.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help=f"Continue the run in the folder with its settings; only {MAY_BE_GIVEN} may change. --data and --valid "
        "may name the same files in another place.",
    ),
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also write the curves for TensorBoard.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")]
SizeName = Annotated[
    str | None,
    typer.Option("--size", metavar="NAME", help=f"Size of the model: {', '.join(SIZES)}. [default: from the data]"),
]
Given = Mapping[str, Any]


@with_settings(TranslationTraining.Config, TranslationTraining.VARIANTS)
def translation(
    out: Out, given: Given, size: SizeName = None, resume: Resume = False, tensorboard: Tensorboard = False,
    cpu: Cpu = False,
) -> None:  # fmt: skip
    """Train a translator into the folder."""
    train_recipe(TranslationTraining, out, given, size=size, resume=resume, tensorboard=tensorboard, cpu=cpu)


@with_settings(LanguageModelTraining.Config)
def language_model(
    out: Out, given: Given, size: SizeName = None, resume: Resume = False, tensorboard: Tensorboard = False,
    cpu: Cpu = False,
) -> None:  # fmt: skip
    """Train a language model into the folder."""
    train_recipe(LanguageModelTraining, out, given, size=size, resume=resume, tensorboard=tensorboard, cpu=cpu)


@with_settings(MaskedWordsTraining.Config)
def masked_words(
    out: Out, given: Given, size: SizeName = None, resume: Resume = False, tensorboard: Tensorboard = False,
    cpu: Cpu = False,
) -> None:  # fmt: skip
    """Train an encoder on hidden words into the folder."""
    train_recipe(MaskedWordsTraining, out, given, size=size, resume=resume, tensorboard=tensorboard, cpu=cpu)


@with_settings(ClassifierTraining.Config)
def classifier(
    out: Out, given: Given, size: SizeName = None, resume: Resume = False, tensorboard: Tensorboard = False,
    cpu: Cpu = False,
) -> None:  # fmt: skip
    """Train a classifier into the folder."""
    train_recipe(ClassifierTraining, out, given, size=size, resume=resume, tensorboard=tensorboard, cpu=cpu)


def train_recipe(
    recipe: type[Recipe], out: Path, given: Given, *, size: str | None, resume: bool, tensorboard: bool, cpu: bool
) -> None:
    """Train by a recipe, show it, and say how it ended.

    Raises:
        RegardError: as for the recipe; or it was interrupted, and the sentence says how to go on.
    """
    go_on = ["regard", "train", recipe.COMMAND, "--out", str(out), "--resume"]
    kept = f"{out} keeps the run as it was last saved"
    with _one_voice(), keeping(lambda: kept if (out / CHECKPOINTS_FILE).exists() else None, go_on):
        made = recipe.of(out, given, size=size, resume=resume, cpu=cpu, tell=say)
        if resume:
            check_still_there(out, made.config, given)
        training = made.prepare(out if resume else None)
        with training_progress() as progress:
            result = training.run(out, resume=resume, cpu=cpu, tensorboard=tensorboard, samples=True, progress=progress)
        conclude(recipe.COMMAND, out, result, training.judge(out, result))


def conclude(command: str, out: Path, result: TrainingResult, verdict: str | None) -> None:
    """Say how a training ended and how good the best model is; an interrupted one is a failure.

    Raises:
        StoppedError: it was interrupted; the sentence says how to go on.
    """
    reasons = {
        "steps": "all steps are done",
        "minutes": "the minutes are over",
        "patience": "validation stopped improving",
        "interrupted": "interrupted",
    }
    best = f", {verdict} at step {result.best_step}" if verdict else ""
    sentence = (
        f"{reasons[result.stopped]}: {count_of(result.steps, 'steps', ',')}{best}, {duration(result.wall_seconds)} "
        f"({count_of(round(result.cpu_seconds), 'CPU seconds', ',')}); the run is in {out}"
    )
    if result.stopped == "interrupted":
        raise StoppedError(sentence, go_on=shlex.join(["regard", "train", command, "--out", str(out), "--resume"]))
    say(sentence)


@contextmanager
def _one_voice() -> Generator[None]:
    """Of several processes only the first writes to standard error; at the end their group is closed."""
    with open(os.devnull, "w") as silence, redirect_stderr(silence) if share_of_work()["rank"] else nullcontext():
        yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def average(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a training run that kept several checkpoints (--keep).")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the new model.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints to average.")] = 5,
) -> None:
    """Write the mean of a run's last checkpoints, and say of which."""
    names = average_checkpoints(run, last, out)
    say(f"the mean of {', '.join(names)} is in {out}")
