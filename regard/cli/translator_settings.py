"""What decides the training of a translator, and what each model takes where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from regard.cli.run_settings import RunSettings
from regard.errors import ArgumentError
from regard.models import RecurrentTranslator, TranslationTransformer
from regard.models.kinds import TranslationModel
from regard.models.recurrent import RecurrentConfig
from regard.models.translation_transformer import TranslationConfig

RECURRENT: dict[str, Any] = {"dim": 128, "layers": 1, "learning_rate": 2e-3, "warmup_steps": 200}
# A dot product has no matrix that could learn to compare: the state has to hear what was looked at.
FED: dict[str, Any] = {**RECURRENT, "learning_rate": 4e-3, "input_feeding": True}

# The models by name, with the settings that differ from the Transformer's, which are those of `Settings`.
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "bahdanau": RECURRENT,
    "luong-dot": FED,
    "luong-general": RECURRENT,
    "luong-concat": RECURRENT,
    "none": RECURRENT,
}
OF_THE_TRANSFORMER = (
    "attention", "decoder_attention", "cross_attention", "kv_heads", "heads", "norm", "positions",
    "gradient_checkpointing",
)  # fmt: skip
OF_THE_RECURRENT = ("cell", "reach", "window", "input_feeding")


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Everything that decides the training of a translator.

    >>> Settings.new({"data": ["pronouns"], "model": "bahdanau"}).layers
    1
    """

    model: str = "transformer"
    attention: str = "full"
    decoder_attention: str = "causal"
    cross_attention: str = "full"
    layers: int = 3
    norm: str = "pre"
    positions: str = "sinusoidal"
    hidden: int | None = None
    cell: str = "gru"
    reach: str = "global"
    window: int = 10
    input_feeding: bool = False
    batch_tokens: int = 2_048
    steps: int = 10_000
    warmup_steps: int = 400
    schedule: str = "inverse_square_root"
    weight_decay: float = 0.0
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model(self.model)

    @classmethod
    def new(cls, chosen: Mapping[str, Any]) -> Self:
        """Those of a new run, with a model's own defaults where nothing was chosen.

        Raises:
            ArgumentError: a model that does not exist, or a setting that it does not have.
        """
        model = chosen.get("model", "transformer")
        check_model(model)
        others = OF_THE_RECURRENT if model == "transformer" else OF_THE_TRANSFORMER
        if strange := [f"--{name.replace('_', '-')}" for name in others if name in chosen]:
            whose = "recurrent models" if model == "transformer" else "the Transformer"
            raise ArgumentError(f"{', '.join(strange)} belongs to {whose}, and --model is {model}; leave it out")
        return cls(**{**MODELS[model], **chosen})

    def model_config(self, vocab_size: int) -> TranslationConfig | RecurrentConfig:
        sizes: dict[str, Any] = {
            "vocab_size": vocab_size, "dim": self.dim, "dropout": self.dropout,
            "encoder_layers": self.layers, "decoder_layers": self.layers,
        }  # fmt: skip
        if self.model != "transformer":
            return RecurrentConfig(
                **sizes, hidden=self.hidden or 2 * self.dim, cell=self.cell, attention=self.model,
                reach=self.reach, window=self.window, input_feeding=self.input_feeding,
            )  # fmt: skip
        return TranslationConfig(
            **sizes, hidden_dim=self.hidden or 4 * self.dim, heads=self.heads, norm=self.norm,
            positions=self.positions, gradient_checkpointing=self.gradient_checkpointing,
            encoder_kv_heads=self.kv_heads, decoder_kv_heads=self.kv_heads, cross_kv_heads=self.kv_heads,
            encoder_pattern=self.attention, decoder_pattern=self.decoder_attention, cross_pattern=self.cross_attention,
        )  # fmt: skip

    def new_model(self, vocab_size: int) -> TranslationModel:
        """The model, its weights drawn from torch's generator."""
        config = self.model_config(vocab_size)
        return RecurrentTranslator(config) if isinstance(config, RecurrentConfig) else TranslationTransformer(config)


def check_model(model: object) -> None:
    if model not in MODELS:
        raise ArgumentError(f"model {model!r} does not exist; there are {', '.join(MODELS)}")
