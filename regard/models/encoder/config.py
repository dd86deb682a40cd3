"""What a TextEncoder is made of, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass

from regard.combination import check_combination
from regard.errors import ArgumentError
from regard.mechanisms import Mechanism
from regard.models.language.config import EACH, LanguageConfig, in_turn
from regard.patterns import Pattern, parse

HEADS = ("words", "classes", "none")
POOLINGS = ("mean", "first")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(LanguageConfig):
    """Sizes and choices of an encoder: those of a LanguageModel, but a text is whole, so that nothing ahead is hidden.

    BERT has positions="learned" and its norms after each part; here they come first.

    Args:
        pattern: who may look at whom, as text; or several texts, which the layers take in turn. Longformer:
            "sliding_window(256) | global_tokens(0)"; BigBird adds "| random_blocks(3, block=64, seed=0)".
        head: what is made of the vectors: "words", scores of the word at each place; "classes", scores of each text;
            "none", the vectors themselves.
        classes: how many there are to choose among, for head="classes".
        pooling: a text's vector, "mean" over its places or the "first" one.

    Raises:
        ArgumentError, UnsupportedError: sizes or choices that cannot be, or not together.

    >>> EncoderConfig(vocab_size=100, dim=32, head="classes", classes=2).pattern
    'full'
    """

    pattern: EACH = "full"
    norm: str = "layer"
    activation: str = "gelu"
    biases: bool = True
    dropout: float = 0.1
    head: str = "words"
    classes: int | None = None
    pooling: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("head", HEADS)
        self.check_choice("pooling", POOLINGS)
        if (self.head == "classes") != (self.classes is not None):
            raise ArgumentError(f"head is {self.head!r} and classes is {self.classes}; 'classes' needs their number")
        if self.classes is not None:
            self.check_sizes("classes")

    def pattern_of(self, layer: int) -> Pattern:
        """Who may look at whom in a layer, counted from 0."""
        return parse(in_turn(self.pattern, layer))

    @property
    def by_length(self) -> bool:
        """Does who looks at whom depend on how long a text is?"""
        return any(self.pattern_of(layer).by_length for layer in range(self.layers))

    def _check_attention(self, pattern: Pattern, mechanism: Mechanism) -> None:
        """What cannot be, or not these two together."""
        pattern.check(1, self.heads, 1, 1)
        options = {"bias": self.positions == "alibi", "dropout": self.attention_dropout > 0}
        check_combination(mechanism, pattern.canonical(), [name for name, given in options.items() if given], ())
        if mechanism.shares_keys and self.kv_heads != self.heads:
            raise ArgumentError(f"{mechanism}: its queries are its keys, so kv_heads must be heads, {self.heads}")
