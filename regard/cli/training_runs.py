"""What the commands under `regard train` do alike: train into a run that explains itself, and say how it ended."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from regard.cli.console import duration, say
from regard.cli.progress import training_progress
from regard.cli.run_settings import RunSettings
from regard.cli.runs import write_run
from regard.cli.samples import Samples, write_samples
from regard.decoding.loading import TOKENISER_FILE
from regard.errors import ArgumentError, RegardError
from regard.models import RecurrentTranslator, TranslationTransformer
from regard.models.base import Storable
from regard.text import Pair, Tokeniser
from regard.training import Task, TrainingResult, draw_curves, train


def share_of_work() -> dict[str, int]:
    """How many processes train together and which this is, as a launcher says it."""
    told = {name: os.environ.get(name, default) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"))}
    if strange := [f"{name}={value}" for name, value in told.items() if not value.isdecimal()]:
        raise ArgumentError(f"{', '.join(strange)} in the environment is no number; launchers such as torchrun set it")
    return {"world": int(told["WORLD_SIZE"]), "rank": int(told["RANK"])}


@contextmanager
def together() -> Generator[None]:
    """Within it, of several processes the first alone is heard, and at the end they part in good order."""
    with open(os.devnull, "w") as nobody, redirect_stderr(nobody) if share_of_work()["rank"] else nullcontext():
        yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training, ready to go: what is trained on what, and what its run keeps.

    Args:
        samples: what shows after each validation what the model makes of a few texts.
        test: pairs that the run keeps to be scored on.
        files: texts that every checkpoint keeps beside the tokeniser.
    """

    out: Path
    settings: RunSettings
    model: Storable | TranslationTransformer | RecurrentTranslator
    task: Task
    tokeniser: Tokeniser
    samples: Samples | None = None
    test: tuple[Pair, ...] = ()
    files: Mapping[str, str] | None = None

    def go(self, *, resume: bool, cpu: bool, tensorboard: bool = False) -> TrainingResult:
        """Train into the folder, with its settings before and its curves after."""
        is_first = not share_of_work()["rank"]
        files = {TOKENISER_FILE: self.tokeniser.to_json(), **(self.files or {})}
        with training_progress() as progress:
            result = train(
                self.model, self.task, self.settings.training_config(), self.out, kind=self.model.KIND,
                model_config=self.model.config.to_dict(), extra_files=files, resume=resume, progress=progress,
                on_begin=lambda: write_run(self.out, asdict(self.settings), self.test),
                on_validation=self._show if self.samples else None, tensorboard=tensorboard, cpu=cpu,
            )  # fmt: skip
        if is_first:
            _draw(self.out, tell_lost=True)
        return result

    def _show(self, model: torch.nn.Module, step: int, folder: Path) -> None:
        assert self.samples is not None
        write_samples(self.samples, model, step, folder)
        _draw(folder)


def _draw(run: Path, *, tell_lost: bool = False) -> None:
    """The curves, or why there are none: a picture stops nothing, whatever the log holds."""
    try:
        lost = draw_curves(run / "log.jsonl", run / "curves.png")
    except Exception as error:  # whatever a drawing library says of numbers that nobody can draw
        reason = str(error) if isinstance(error, RegardError) else f"{type(error).__name__}: {error}"
        say(f"no picture: {reason}")
        return
    for sentence in lost if tell_lost else ():
        say(sentence)


def describe_model(name: str, model: torch.nn.Module, tokeniser: Tokeniser) -> str:
    """`a language model of 812,345 numbers, 2,000 sub-words`."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    pieces = {"bpe": "sub-words", "character": "characters and bytes", "byte": "bytes"}[tokeniser.kind]
    return f"{name} of {numbers:,} numbers, {tokeniser.vocab_size:,} {pieces}"


def describe_steps(settings: RunSettings, steps_per_epoch: int) -> str:
    """`5,000 steps of up to 8,192 ids, 120 an epoch`."""
    ids = settings.batch_tokens * settings.accumulate * share_of_work()["world"]
    return f"{settings.steps:,} steps of up to {ids:,} ids, {steps_per_epoch / settings.accumulate:,.0f} an epoch"


def conclude(command: str, out: Path, result: TrainingResult, found: str | None) -> None:
    """Say how a training ended and what it found; an interrupted one is a failure.

    Raises:
        RegardError: it was interrupted; the sentence says how to go on.
    """
    reasons = {
        "steps": "all steps are done",
        "minutes": "the minutes are over",
        "patience": "validation stopped improving",
        "interrupted": f"interrupted; go on with: regard train {command} --out {out} --resume",
    }
    best = f", {found} at step {result.best_step}" if found else ""
    verdict = (
        f"{reasons[result.stopped]}: {result.steps:,} steps{best}, {duration(result.wall_seconds)} "
        f"({result.cpu_seconds:,.0f} CPU seconds); the run is in {out}"
    )
    if result.stopped == "interrupted":
        raise RegardError(verdict)
    say(verdict)
