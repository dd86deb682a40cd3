"""What a TranslationTransformer is made of, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import ArgumentError
from regard.layers.feed_forward import ACTIVATIONS
from regard.models.settings import Settings
from regard.models.transformer_layers import NORMS
from regard.patterns import parse

POSITIONS = ("sinusoidal", "learned", "rotary")


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(Settings):
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
        gradient_checkpointing: in training, keep a layer's input alone and compute the rest again in the backward pass.

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
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.hidden_dim == 0 and isinstance(self.dim, int):
            object.__setattr__(self, "hidden_dim", 4 * self.dim)
        self.check_sizes("vocab_size", "dim", "heads", "hidden_dim", "encoder_layers", "decoder_layers", "max_length")
        for name in ("encoder_kv_heads", "decoder_kv_heads", "cross_kv_heads"):
            if getattr(self, name) is not None:
                self.check_sizes(name)
                if self.heads % getattr(self, name):
                    raise ArgumentError(f"{name} is {getattr(self, name)}; heads {self.heads} must be a multiple of it")
        if self.dim % self.heads or self.dim % 2:
            raise ArgumentError(f"dim is {self.dim}; it needs to be even and a multiple of heads, {self.heads}")
        if self.positions == "rotary" and self.dim // self.heads % 2:
            raise ArgumentError(f"rotary turns pairs, and dim / heads is {self.dim // self.heads}; it needs to be even")
        for name in ("encoder_pattern", "decoder_pattern", "cross_pattern"):
            self._check_pattern(name)
        for name, choices in (("positions", POSITIONS), ("norm", NORMS), ("activation", ACTIVATIONS)):
            self.check_choice(name, choices)
        self.check_shares("dropout", "attention_dropout")
        self.check_flags("tied", "gradient_checkpointing")

    def _check_pattern(self, name: str) -> None:
        """A text whose pattern means the same for a sentence alone, in a padded batch, and written id by id."""
        if (pattern := parse(getattr(self, name))).by_length:
            raise ArgumentError(
                f"{name} {pattern} depends on how many keys there are, so that a sentence would be translated "
                f"otherwise beside a longer one, and its target otherwise id by id; let it draw among the past alone, "
                f"such as random_blocks(3, block=64, seed=0, past=true)"
            )

    @property
    def least_parameters(self) -> int:
        layers = self.encoder_layers + self.decoder_layers
        return self.vocab_size * self.dim + layers * 2 * self.dim * self.hidden_dim
