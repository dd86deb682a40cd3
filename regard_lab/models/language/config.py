"""The config of a LanguageModel."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

from regard.arguments import a_string, count_of, of_kind
from regard.core.problem import check_combination
from regard.errors import ArgumentError
from regard.layers.feed_forward import ACTIVATIONS, GATED
from regard.mechanisms import Mechanism
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Causal, Pattern, parse
from regard.reprs import brief
from regard_lab.models.base import Settings
from regard_lab.models.layers import NORMS

POSITIONS = ("rotary", "alibi", "learned", "sinusoidal", "none")
EACH = str | tuple[str, ...]  # one text for all layers, or several that the layers use in turn


@brief
@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Settings):
    """The config of a LanguageModel, a decoder-only Transformer.

    The defaults give a small Llama with tied embeddings. GPT-2 has norm="layer", positions="learned",
    activation="gelu-tanh" and biases=True.

    Args:
        vocab_size: size of the vocabulary.
        dim: size of the vectors.
        layers: number of layers.
        heads: number of query heads.
        kv_heads: number of key/value heads; `heads` by default.
        head_dim: size of a head; dim / heads by default.
        hidden_dim: inside the feed-forward; 0 for 4 · dim, or two thirds of that with a gated activation.
        pattern: allowed pairs, as text, ANDed with causal; or several texts, which the layers use in turn, such as
            ("causal_window(128)", "full").
        mechanism: how scores become weights, as a text of `regard.mechanisms.parse`; or several texts likewise.
        positions: "rotary", "alibi", "learned", "sinusoidal" or "none".
        rotary_base: base of the rotary positions.
        max_length: number of learned positions.
        norm: "rms" or "layer", before each part and at the end.
        epsilon: of the norms.
        activation: of the feed-forward, see FeedForward.
        biases: whether projections and layer norms have biases.
        tied: whether the embeddings also score the vocabulary.
        dropout: after embeddings and in residuals.
        attention_dropout: of the attention weights.
        gradient_checkpointing: in training, store only the input of each layer and compute the rest again in the
            backward pass.

    Raises:
        ArgumentError, UnsupportedError: invalid sizes or choices, or choices that exclude each other.

    >>> LanguageConfig(vocab_size=100, dim=32, heads=4).hidden_dim
    88
    """

    vocab_size: int
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden_dim: int = 0
    pattern: EACH = "causal"
    mechanism: EACH = "softmax"
    positions: str = "rotary"
    rotary_base: float = 10_000.0
    max_length: int = 1024
    norm: str = "rms"
    epsilon: float = 1e-5
    activation: str = "swiglu"
    biases: bool = False
    tied: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        self.check_sizes("vocab_size", "dim", "layers", "heads", "max_length")
        self.check_choice("positions", POSITIONS)
        self.check_choice("norm", NORMS)
        self.check_choice("activation", ACTIVATIONS)
        self.check_shares("dropout", "attention_dropout")
        self.check_flags("biases", "tied", "gradient_checkpointing")
        self._check_above_zero("rotary_base", "epsilon")
        self._fill()
        self.check_sizes("kv_heads", "head_dim", "hidden_dim")
        self._check_heads()
        lengths = [len(texts) for texts in (self.pattern, self.mechanism) if not isinstance(texts, str)]
        for layer in range(min(self.layers, lcm(*lengths))):  # later layers repeat these combinations
            self._check_attention(self.pattern_of(layer), self.mechanism_of(layer))

    @property
    def least_parameters(self) -> int:
        return self.vocab_size * self.dim + self.layers * 2 * self.dim * self.hidden_dim

    def pattern_of(self, layer: int) -> Pattern:
        """The causal pattern of a layer, counted from 0."""
        return Causal() & parse(in_turn(self.pattern, layer))

    def mechanism_of(self, layer: int) -> Mechanism:
        """The mechanism of a layer, counted from 0."""
        return parse_mechanism(in_turn(self.mechanism, layer))

    def _check_above_zero(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ArgumentError(f"{name} is {value!r}; give a number above 0")

    def _fill(self) -> None:
        """Fill in defaults that depend on other settings, and turn lists (as JSON has them) into tuples."""
        filled: dict[str, Any] = {}
        if self.kv_heads is None:
            filled["kv_heads"] = self.heads
        if self.head_dim is None:
            if self.dim % self.heads:
                raise ArgumentError(f"dim is {self.dim}; without head_dim it must be a multiple of heads, {self.heads}")
            filled["head_dim"] = self.dim // self.heads
        filled["hidden_dim"] = of_kind("hidden_dim", self.hidden_dim, int, "an integer, 0 for the default")
        if filled["hidden_dim"] == 0:
            filled["hidden_dim"] = -(-self.dim // 3) * 8 if self.activation in GATED else 4 * self.dim
        for name in ("pattern", "mechanism"):
            texts = getattr(self, name)
            if isinstance(texts, list | tuple):
                if not 1 <= len(texts) <= self.layers:
                    raise ArgumentError(
                        f"{name} has {count_of(len(texts), 'texts')} for "
                        f"{count_of(self.layers, 'layers')}; give 1 to {self.layers}"
                    )
                filled[name] = tuple(a_string(f"a text of {name}", text) for text in texts)
            else:
                a_string(name, texts)
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def _check_heads(self) -> None:
        assert self.kv_heads is not None
        assert self.head_dim is not None
        if self.heads % self.kv_heads:
            raise ArgumentError(f"kv_heads is {self.kv_heads}; heads, {self.heads}, must be a multiple of it")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ArgumentError(f"rotary rotates pairs, and head_dim is {self.head_dim}; it must be even")
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ArgumentError(f"sines and cosines come in pairs, and dim is {self.dim}; it must be even")

    def _check_attention(self, pattern: Pattern, mechanism: Mechanism) -> None:
        """Refuse a pattern or mechanism that a model of this config cannot have."""
        pattern.check(1, self.heads, 1, 1)
        self._check_continued(pattern)
        options = {"bias": self.positions == "alibi", "dropout": self.attention_dropout > 0}
        check_combination(mechanism, pattern.canonical(), [name for name, given in options.items() if given], ())
        if mechanism.shares_keys and self.kv_heads != self.heads:
            raise ArgumentError(f"{mechanism}: its queries are its keys, so kv_heads must be heads, {self.heads}")

    def _check_continued(self, pattern: Pattern) -> None:
        """Refuse a pattern under which continuing a text would change the outputs of its earlier tokens."""
        if pattern.by_length:
            raise ArgumentError(
                f"pattern {pattern} depends on the length of the text, so later tokens would change earlier outputs; "
                f"use a pattern of the past only, such as random_blocks(3, block=64, seed=0, past=true)"
            )


def in_turn(texts: EACH, layer: int) -> str:
    """The text for a layer, counted from 0."""
    return texts if isinstance(texts, str) else texts[layer % len(texts)]
