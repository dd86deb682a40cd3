"""The settings that all recipes share; the options of `regard train` are made from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from regard.arguments import of_kind
from regard.reprs import brief
from regard_lab.models import LanguageConfig
from regard_lab.models.encoder import EncoderConfig
from regard_lab.training.config import CHOSEN, TrainingConfig, setting


@brief
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """Everything that decides a training run, whatever is trained; beside it stand the settings of `TrainingConfig`.

    Args:
        data: the files to learn from, or pronouns for the embedded corpus.
        valid: the files to validate on; without them a part of the data is held out.
        vocab_size: largest size of the vocabulary.
        tokeniser: kind of vocabulary; bpe learns sub-words from the data.
        positions: encoding of positions: rotary, alibi, learned, sinusoidal or none.
        dim: size of the vectors.
        heads: query heads.
        kv_heads: key/value heads of every attention.
        layers: layers of the model.
        dropout: share of the numbers that are dropped in training.
        gradient_checkpointing: recompute each layer in the backward pass, to save memory.
        batch_tokens: largest number of ids in a batch, padding included.
    """

    data: tuple[str, ...] = setting(metavar="FILE")
    valid: tuple[str, ...] = setting((), metavar="FILE")
    vocab_size: int = setting(8_000, least=260, shown=CHOSEN)
    tokeniser: str = setting("bpe", metavar="bpe|character|byte")
    positions: str = setting(LanguageConfig.positions)
    dim: int = setting(256, least=2, shown=CHOSEN)
    heads: int = setting(LanguageConfig.heads, least=1, shown=CHOSEN)
    kv_heads: int | None = setting(None, least=1, shown="heads")
    layers: int = setting(LanguageConfig.layers, least=1, shown=CHOSEN)
    dropout: float = setting(EncoderConfig.dropout, shown=CHOSEN)
    gradient_checkpointing: bool = setting(False)
    batch_tokens: int = setting(4_096, least=16, shown=CHOSEN)
    steps: int | None = setting(5_000, least=1, shown=CHOSEN)
    warmup_steps: int = setting(200, least=0, shown=CHOSEN)
    schedule: str = setting("cosine", shown=CHOSEN)
    weight_decay: float = setting(0.01, least=0)
    validate_every: int | None = setting(250, least=1, shown=CHOSEN)
    save_every: int | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            if entry.type.startswith("tuple"):  # JSON and the command line have lists
                values = of_kind(entry.name, getattr(self, entry.name), list | tuple, "a list")
                object.__setattr__(self, entry.name, tuple(values))
        super().__post_init__()

    def model_config(self, vocab_size: int) -> Any:
        """The config of the model, with a vocabulary of so many pieces."""

    def training_config(self) -> TrainingConfig:
        """The part of the settings that the loop takes."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(TrainingConfig)}
        settings["save_every"] = self.save_every or self.validate_every
        return TrainingConfig(**settings)


@brief
@dataclass(frozen=True, kw_only=True)
class StackConfig(RunConfig):
    """Those of a model that is one stack of layers: a language model or an encoder.

    Args:
        attention: pattern of the layers; may be repeated, and the layers take them in turn.
        mechanism: mechanism of the layers: softmax, linear, 'performer(features=256)', ...; may be repeated too.
        max_length: number of positions, if positions are learned.
    """

    attention: tuple[str, ...] = setting((), metavar="PATTERN")
    mechanism: tuple[str, ...] = setting((), metavar="NAME")
    max_length: int = setting(LanguageConfig.max_length, least=2)

    def model_settings(self) -> dict[str, Any]:
        """What every such model takes; patterns and mechanisms where they were named."""
        settings: dict[str, Any] = {
            "positions": self.positions,
            "dim": self.dim,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "layers": self.layers,
            "dropout": self.dropout,
            "max_length": self.max_length,
            "gradient_checkpointing": self.gradient_checkpointing,
        }
        if self.attention:
            settings["pattern"] = self.attention
        if self.mechanism:
            settings["mechanism"] = self.mechanism
        return settings
