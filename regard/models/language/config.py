"""What a LanguageModel is made of, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

from regard.combination import check_combination
from regard.errors import ArgumentError
from regard.kinds import a_string, of_kind
from regard.layers.feed_forward import ACTIVATIONS, GATED
from regard.mechanisms import Mechanism
from regard.models.block import NORMS
from regard.models.mechanism_text import parse_mechanism
from regard.models.settings import Settings
from regard.patterns import Causal, Pattern, parse

POSITIONS = ("rotary", "alibi", "learned", "sinusoidal", "none")
EACH = str | tuple[str, ...]  # one text for all layers, or several that they take in turn


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Settings):
    """Sizes and choices of a decoder-only Transformer.

    As it stands it is a small Llama (which has tied=False); GPT-2 has norm="layer", positions="learned",
    activation="gelu-tanh" and biases=True.

    Args:
        vocab_size: ids there are.
        dim: size of the vectors; layers: how many; heads: query heads.
        kv_heads: key/value heads, as many as `heads` by default; head_dim: size of a head, dim / heads by default.
        hidden_dim: inside the feed-forward; 4 · dim by default, and two thirds of it where the activation is gated.
        pattern: who may look at whom, as text, ANDed with causal; or several texts, which the layers take in turn:
            ("causal_window(128)", "full").
        mechanism: how scores become weights, a text of `regard.models.mechanism_text`, or several likewise.
        positions: "rotary" (turned by `rotary_base`), "alibi", "learned" (up to max_length), "sinusoidal" or "none".
        norm: "rms" or "layer", before each part and at the end; epsilon: of the norms.
        activation: of the feed-forward, see FeedForward.
        biases: do projections and layer norms have biases?
        tied: do the embeddings score the vocabulary as well?
        dropout: after embeddings and in residuals; attention_dropout: of the weights.
        gradient_checkpointing: compute each layer again on the way back instead of keeping what is inside it.

    Raises:
        ArgumentError, UnsupportedError: sizes or choices that cannot be, or not together.

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
        told = [len(texts) for texts in (self.pattern, self.mechanism) if not isinstance(texts, str)]
        for layer in range(min(self.layers, lcm(*told))):  # then they come again in turn
            self._check_attention(self.pattern_of(layer), self.mechanism_of(layer))

    @property
    def least_parameters(self) -> int:
        return self.vocab_size * self.dim + self.layers * 2 * self.dim * self.hidden_dim

    def pattern_of(self, layer: int) -> Pattern:
        """Who may look at whom in a layer, counted from 0; never ahead."""
        return Causal() & parse(in_turn(self.pattern, layer))

    def mechanism_of(self, layer: int) -> Mechanism:
        """How scores become weights in a layer, counted from 0."""
        return parse_mechanism(in_turn(self.mechanism, layer))

    def _check_above_zero(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ArgumentError(f"{name} is {value!r}; it is a number above 0")

    def _fill(self) -> None:
        """What follows from other settings, and lists, as JSON has them, as tuples."""
        filled: dict[str, Any] = {}
        if self.kv_heads is None:
            filled["kv_heads"] = self.heads
        if self.head_dim is None:
            if self.dim % self.heads:
                raise ArgumentError(f"dim is {self.dim}; without head_dim it is a multiple of heads, {self.heads}")
            filled["head_dim"] = self.dim // self.heads
        filled["hidden_dim"] = of_kind("hidden_dim", self.hidden_dim, int, "a whole number, 0 for the usual one")
        if filled["hidden_dim"] == 0:
            filled["hidden_dim"] = -(-self.dim // 3) * 8 if self.activation in GATED else 4 * self.dim
        for name in ("pattern", "mechanism"):
            texts = getattr(self, name)
            if isinstance(texts, list | tuple):
                if not 1 <= len(texts) <= self.layers:
                    raise ArgumentError(
                        f"{name} is {len(texts)} texts for {self.layers} layers; give 1 or more, up to that"
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
            raise ArgumentError(f"rotary turns pairs, and head_dim is {self.head_dim}; it needs to be even")
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ArgumentError(f"sines and cosines come in pairs, and dim is {self.dim}; it needs to be even")

    def _check_attention(self, pattern: Pattern, mechanism: Mechanism) -> None:
        """What a text that goes on cannot have, or these two not together."""
        pattern.check(1, self.heads, 1, 1)
        if pattern.by_length:
            raise ArgumentError(
                f"pattern {pattern} depends on how long a text is, so that a text that goes on would change what was "
                f"said before; let it draw among the past alone, such as random_blocks(3, block=64, seed=0, past=true)"
            )
        options = {"bias": self.positions == "alibi", "dropout": self.attention_dropout > 0}
        check_combination(mechanism, pattern.canonical(), [name for name, given in options.items() if given], ())
        if mechanism.shares_keys and self.kv_heads != self.heads:
            raise ArgumentError(f"{mechanism}: its queries are its keys, so kv_heads must be heads, {self.heads}")


def in_turn(texts: EACH, layer: int) -> str:
    """The text of a layer."""
    return texts if isinstance(texts, str) else texts[layer % len(texts)]
