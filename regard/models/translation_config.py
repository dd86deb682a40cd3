"""What a TranslationTransformer is made of, apart from its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from regard.errors import ArgumentError
from regard.layers.feed_forward import ACTIVATIONS
from regard.models.transformer_layers import NORMS
from regard.patterns import parse

POSITIONS = ("sinusoidal", "learned", "rotary")


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """Sizes and choices of a Transformer that translates.

    Args:
        vocab_size: ids of the vocabulary that source and target share.
        dim: size of the vectors; heads: query heads; hidden_dim: inside the feed-forward, 4 · dim by default.
        encoder_layers, decoder_layers: depth of each side.
        encoder_kv_heads, decoder_kv_heads, cross_kv_heads: key/value heads; as many as `heads` by default.
        encoder_pattern, decoder_pattern, cross_pattern: who may look at whom, as text; the decoder's is ANDed
            with causal, and the cross pattern compares the target's positions with the source's.
        positions: "sinusoidal", "learned" (up to max_length) or "rotary".
        norm: "pre" or "post".
        tied: one matrix for source, target and output vocabulary.
        dropout: after embeddings and in residuals; attention_dropout: of the weights.
        activation: of the feed-forward.

    Raises:
        ArgumentError: sizes or choices that cannot be.

    >>> TranslationConfig(vocab_size=100, dim=32, heads=4).hidden_dim
    128
    """

    vocab_size: int
    dim: int = 128
    heads: int = 4
    hidden_dim: int = 0
    encoder_layers: int = 2
    decoder_layers: int = 2
    encoder_kv_heads: int | None = None
    decoder_kv_heads: int | None = None
    cross_kv_heads: int | None = None
    encoder_pattern: str = "full"
    decoder_pattern: str = "causal"
    cross_pattern: str = "full"
    positions: str = "sinusoidal"
    max_length: int = 512
    norm: str = "pre"
    tied: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.hidden_dim == 0 and isinstance(self.dim, int):
            object.__setattr__(self, "hidden_dim", 4 * self.dim)
        for name in ("vocab_size", "dim", "heads", "hidden_dim", "encoder_layers", "decoder_layers", "max_length"):
            self._check_size(name)
        for name in ("encoder_kv_heads", "decoder_kv_heads", "cross_kv_heads"):
            if getattr(self, name) is not None:
                self._check_size(name)
                if self.heads % getattr(self, name):
                    raise ArgumentError(f"{name} is {getattr(self, name)}; heads {self.heads} must be a multiple of it")
        if self.dim % self.heads or self.dim % 2:
            raise ArgumentError(f"dim is {self.dim}; it needs to be even and a multiple of heads, {self.heads}")
        if self.positions == "rotary" and self.dim // self.heads % 2:
            raise ArgumentError(f"rotary turns pairs, and dim / heads is {self.dim // self.heads}; it needs to be even")
        for name in ("encoder_pattern", "decoder_pattern", "cross_pattern"):
            parse(getattr(self, name))
        for name, choices in (("positions", POSITIONS), ("norm", NORMS), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in choices:
                raise ArgumentError(f"{name} is {getattr(self, name)!r}; there are {', '.join(choices)}")
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise ArgumentError(f"{name} is {value!r}; it is a share from 0 to 1")
        if not isinstance(self.tied, bool):
            raise ArgumentError(f"tied is {self.tied!r}; it is true or false")

    def _check_size(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"{name} is {value!r}; it needs a whole number of at least 1")

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TranslationConfig:
        """The inverse of `to_dict`.

        Raises:
            ArgumentError: a setting that does not exist, is missing, or cannot be.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(settings.keys() - set(known)):
            raise ArgumentError(f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}")
        if "vocab_size" not in settings:
            raise ArgumentError("the setting vocab_size is missing")
        return cls(**settings)
