"""What decides the training of a translator, and what each model takes where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.errors import ArgumentError
from regard.models import RecurrentTranslator, TranslationTransformer
from regard.models.kinds import TranslationModel
from regard.models.recurrent import RecurrentConfig
from regard.models.translation_config import TranslationConfig
from regard.training import TrainingConfig

RECURRENT: dict[str, Any] = {"dim": 128, "layers": 1, "learning_rate": 2e-3, "warmup_steps": 200}

# The models by name, with the settings that differ from the Transformer's, which are those of `Settings`.
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "bahdanau": RECURRENT,
    "luong-dot": RECURRENT,
    "luong-general": RECURRENT,
    "luong-concat": RECURRENT,
    "none": RECURRENT,
}
OF_THE_TRANSFORMER = (
    "attention", "decoder_attention", "cross_attention", "kv_heads", "heads", "norm", "positions",
)  # fmt: skip
OF_THE_RECURRENT = ("cell", "reach", "window", "input_feeding")


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
    hidden: int | None = None
    cell: str = "gru"
    reach: str = "global"
    window: int = 10
    input_feeding: bool = False
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
        check_model(self.model)
        for name in ("data", "valid"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def is_recurrent(self) -> bool:
        return self.model != "transformer"

    def model_config(self, vocab_size: int) -> TranslationConfig | RecurrentConfig:
        if self.is_recurrent:
            return RecurrentConfig(
                vocab_size=vocab_size, dim=self.dim, hidden=self.hidden or 2 * self.dim, cell=self.cell,
                attention=self.model,
                encoder_layers=self.layers, decoder_layers=self.layers, dropout=self.dropout,
                reach=self.reach, window=self.window, input_feeding=self.input_feeding,
            )  # fmt: skip
        return TranslationConfig(
            vocab_size=vocab_size, dim=self.dim, heads=self.heads, norm=self.norm, positions=self.positions,
            hidden_dim=self.hidden or 4 * self.dim,
            encoder_layers=self.layers, decoder_layers=self.layers, dropout=self.dropout,
            encoder_kv_heads=self.kv_heads, decoder_kv_heads=self.kv_heads, cross_kv_heads=self.kv_heads,
            encoder_pattern=self.attention, decoder_pattern=self.decoder_attention, cross_pattern=self.cross_attention,
        )  # fmt: skip

    def new_model(self, vocab_size: int) -> TranslationModel:
        """The model, its weights drawn from torch's generator."""
        config = self.model_config(vocab_size)
        return RecurrentTranslator(config) if isinstance(config, RecurrentConfig) else TranslationTransformer(config)

    def training_config(self) -> TrainingConfig:
        return TrainingConfig(
            steps=self.steps, minutes=self.minutes, learning_rate=self.learning_rate, warmup_steps=self.warmup_steps,
            schedule=self.schedule, accumulate=self.accumulate, validate_every=self.validate_every,
            save_every=self.validate_every, patience=self.patience, precision=self.precision, seed=self.seed,
        )  # fmt: skip


def new_settings(chosen: Mapping[str, Any]) -> Settings:
    """Settings with a model's own defaults where nothing was chosen.

    Raises:
        ArgumentError: a model that does not exist, or a setting that it does not have.

    >>> new_settings({"data": ("pronouns",), "model": "bahdanau"}).layers
    1
    """
    model = chosen.get("model", "transformer")
    check_model(model)
    others = OF_THE_RECURRENT if model == "transformer" else OF_THE_TRANSFORMER
    if strange := [f"--{name.replace('_', '-')}" for name in others if name in chosen]:
        whose = "recurrent models" if model == "transformer" else "the Transformer"
        raise ArgumentError(f"{', '.join(strange)} belongs to {whose}, and --model is {model}; leave it out")
    return Settings(**{**MODELS[model], **chosen})


def check_model(model: object) -> None:
    if model not in MODELS:
        raise ArgumentError(f"model {model!r} does not exist; there are {', '.join(MODELS)}")
