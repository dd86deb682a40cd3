"""What the commands under `regard train` share: settings that are kept with the run, and what is said around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.cli.console import duration, say
from regard.cli.progress import training_progress
from regard.cli.runs import read_settings, write_run
from regard.decoding.translator import TOKENISER_FILE
from regard.errors import ArgumentError, RegardError
from regard.models.storable import Storable
from regard.models.storage import read_checkpoints
from regard.text import Pair, Tokeniser
from regard.training import Task, TrainingConfig, TrainingResult, draw_curves, train

MAY_CHANGE = ("steps", "minutes", "patience")  # of a run that goes on


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides a training, whatever is trained, as it is kept in the run."""

    data: tuple[str, ...]
    valid: tuple[str, ...] = ()
    tokeniser: str = "bpe"
    vocab_size: int = 8_000
    attention: tuple[str, ...] = ()
    mechanism: tuple[str, ...] = ()
    positions: str = "rotary"
    dim: int = 256
    heads: int = 4
    kv_heads: int | None = None
    layers: int = 4
    dropout: float = 0.1
    max_length: int = 1_024
    batch_tokens: int = 4_096
    steps: int = 5_000
    minutes: float | None = None
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    schedule: str = "cosine"
    weight_decay: float = 0.01
    accumulate: int = 1
    validate_every: int = 250
    patience: int | None = None
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("data", "valid", "attention", "mechanism"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def model_settings(self) -> dict[str, Any]:
        """What every model here takes; patterns and mechanisms where they were named."""
        named = {"pattern": self.attention, "mechanism": self.mechanism}
        names = ("positions", "dim", "heads", "kv_heads", "layers", "dropout", "max_length")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: texts for name, texts in named.items() if texts},
        }

    def training_config(self) -> TrainingConfig:
        names = (
            "steps", "minutes", "learning_rate", "warmup_steps", "schedule", "weight_decay", "accumulate",
            "validate_every", "patience", "precision", "seed",
        )  # fmt: skip
        return TrainingConfig(save_every=self.validate_every, **{name: getattr(self, name) for name in names})

    def learn_tokeniser(self, texts: list[str], verbatim: bool) -> Tokeniser:
        return Tokeniser.train(texts, self.vocab_size, self.tokeniser, verbatim=verbatim)


SettingsT = TypeVar("SettingsT", bound=RunSettings)


def decide_settings(kind: type[SettingsT], out: Path, given: Mapping[str, Any], resume: bool, data: str) -> SettingsT:
    """The settings of a new run, or those of the run in `out` with what may change changed.

    Args:
        kind: what they are settings of.
        out: the folder of the run.
        given: what was asked for; None where nothing was.
        resume: go on with the run in `out` where there is one.
        data: what `--data` names, for people who left it out.

    Raises:
        ArgumentError: no data, or settings that the run in `out` was not begun with.
    """
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen.update({name: tuple(value) for name, value in chosen.items() if isinstance(value, list)})
    kept = read_settings(out) if resume else None
    if kept is None:
        if not chosen.get("data"):
            raise ArgumentError(f"--data is missing: name {data}")
        return kind(**chosen)
    known = {field.name for field in fields(kind)}
    if strange := sorted(kept.keys() - known):
        raise ArgumentError(f"{out} holds a run of another command (it has {strange[0]!r}); choose another folder")
    before = kind(**kept)
    after = kind(**{**asdict(before), **chosen})
    changed = [name for name in known if getattr(before, name) != getattr(after, name) and name not in MAY_CHANGE]
    if changed:
        told = ", ".join(f"{name} {getattr(before, name)!r} -> {getattr(after, name)!r}" for name in sorted(changed))
        raise ArgumentError(f"{out} was begun with other settings ({told}); leave them out, or begin another run")
    return after


def share_of_work() -> dict[str, int]:
    """How many processes train together and which this is, as a launcher says it."""
    return {"world": int(os.environ.get("WORLD_SIZE", "1")), "rank": int(os.environ.get("RANK", "0"))}


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training, ready to go: what is trained on what, and what its run keeps."""

    out: Path
    settings: RunSettings
    model: Storable
    task: Task
    tokeniser: Tokeniser
    test: tuple[Pair, ...] = ()
    files: Mapping[str, str] | None = None

    def go(self, *, resume: bool, cpu: bool) -> TrainingResult:
        """Train into the folder, with curves at the end.

        Raises:
            RegardError: it was interrupted; the sentence says how to go on.
        """
        if not (self.out.is_dir() and read_checkpoints(self.out) is not None):
            write_run(self.out, asdict(self.settings), self.test)
        files = {TOKENISER_FILE: self.tokeniser.to_json(), **(self.files or {})}
        with training_progress() as progress:
            result = train(
                self.model, self.task, self.settings.training_config(), self.out, kind=self.model.KIND,
                model_config=self.model.config.to_dict(), extra_files=files, resume=resume, progress=progress, cpu=cpu,
            )  # fmt: skip
        draw_curves(self.out / "log.jsonl", self.out / "curves.png")
        return result


def describe_model(name: str, model: torch.nn.Module, tokeniser: Tokeniser) -> str:
    """`a language model of 812,345 numbers, 2,000 sub-words`."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    pieces = {"bpe": "sub-words", "character": "characters and bytes", "byte": "bytes"}[tokeniser.kind]
    return f"{name} of {numbers:,} numbers, {tokeniser.vocab_size:,} {pieces}"


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
