"""The settings of a training as its run keeps them: what all have in common, and what a run that goes on may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from regard.cli.runs import read_settings
from regard.errors import ArgumentError
from regard.training import TrainingConfig
from regard.training.fingerprint import MAY_CHANGE


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides a training, whatever is trained."""

    data: tuple[str, ...]
    valid: tuple[str, ...] = ()
    vocab_size: int = 8_000
    positions: str = "rotary"
    dim: int = 256
    heads: int = 4
    kv_heads: int | None = None
    layers: int = 4
    dropout: float = 0.1
    gradient_checkpointing: bool = False
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
    keep: int = 1
    skip_non_finite: int = 0
    parallel: str = "ddp"
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type.startswith("tuple"):  # JSON and the command line have lists
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))

    @classmethod
    def new(cls, chosen: Mapping[str, Any]) -> Self:
        """Those of a new run, with defaults where nothing was chosen."""
        return cls(**chosen)

    def training_config(self) -> TrainingConfig:
        """The part of them that the loop takes."""
        names = {field.name for field in fields(self)} & {field.name for field in fields(TrainingConfig)}
        return TrainingConfig(save_every=self.validate_every, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class StackSettings(RunSettings):
    """Those of a model that is one stack of layers, a language model or an encoder."""

    tokeniser: str = "bpe"
    attention: tuple[str, ...] = ()
    mechanism: tuple[str, ...] = ()
    max_length: int = 1_024

    def model_settings(self) -> dict[str, Any]:
        """What every such model takes; patterns and mechanisms where they were named."""
        named = {"pattern": self.attention, "mechanism": self.mechanism}
        names = (
            "positions", "dim", "heads", "kv_heads", "layers", "dropout", "max_length", "gradient_checkpointing",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            **{name: texts for name, texts in named.items() if texts},
        }


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
    chosen = {name: value for name, value in given.items() if value is not None}
    kept = read_settings(out) if resume else None
    if kept is None:
        if not chosen.get("data"):
            raise ArgumentError(f"--data is missing: name {data}")
        settings = kind.new(chosen)
        settings.training_config()  # what cannot be is refused before any data are read
        return settings
    known = [field.name for field in fields(kind)]
    if strange := sorted(kept.keys() - set(known)):
        raise ArgumentError(f"{out} holds a run of another command (it has {strange[0]!r}); choose another folder")
    before = kind(**kept)
    after = kind(**{**asdict(before), **chosen})
    after.training_config()
    changed = [
        f"{name} {getattr(before, name)!r} -> {getattr(after, name)!r}"
        for name in sorted(known)
        if getattr(before, name) != getattr(after, name) and name not in MAY_CHANGE
    ]
    if changed:
        raise ArgumentError(
            f"{out} was begun with other settings ({', '.join(changed)}); leave them out, or begin another run"
        )
    return after
