"""What a RecurrentTranslator is made of, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import ArgumentError
from regard.models.settings import Settings

CELLS = ("gru", "lstm")
ATTENTIONS = ("bahdanau", "luong-dot", "luong-general", "luong-concat", "none")
REACHES = ("global", "local-m", "local-p")


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Settings):
    """Sizes and choices of a recurrent network that translates.

    Args:
        vocab_size: ids of the vocabulary that source and target share.
        dim: size of the embeddings, and of the vector that scores the vocabulary.
        hidden: size of the decoder's state, and of what the encoder makes of a word: half of it reads forwards, half
            backwards, so that a dot product can compare the two.
        cell: "gru" or "lstm".
        encoder_layers, decoder_layers: depth of each side.
        attention: "bahdanau", "luong-dot", "luong-general", "luong-concat", or "none" for a source in one vector.
        reach: which words Luong's attention looks at: all ("global"), those around the target's own place ("local-m"),
            or those around a predicted one ("local-p").
        window: how far from there, on either side; the paper's D.
        input_feeding: is Luong's attentional vector fed to the next step?
        tied: one matrix for source, target and output vocabulary.
        dropout: of embeddings, between layers, and before the output vocabulary.

    Raises:
        ArgumentError: sizes or choices that cannot be.

    >>> RecurrentConfig(vocab_size=100, attention="luong-general").hidden
    128
    """

    vocab_size: int
    dim: int = 128
    hidden: int = 128
    cell: str = "gru"
    encoder_layers: int = 1
    decoder_layers: int = 1
    attention: str = "bahdanau"
    reach: str = "global"
    window: int = 10
    input_feeding: bool = False
    tied: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        self.check_sizes("vocab_size", "dim", "hidden", "encoder_layers", "decoder_layers", "window")
        self.check_choice("cell", CELLS)
        self.check_choice("attention", ATTENTIONS)
        self.check_choice("reach", REACHES)
        self.check_flags("input_feeding", "tied")
        self.check_shares("dropout")
        if self.hidden % 2:
            raise ArgumentError(f"hidden is {self.hidden}; half of it reads backwards, so it needs to be even")
        if not self.is_luong and (self.reach != "global" or self.input_feeding):
            raise ArgumentError(
                f"reach={self.reach!r}, input_feeding={self.input_feeding} beside attention={self.attention!r}: only "
                f"luong-dot, luong-general and luong-concat have another reach than 'global', or feed their output on"
            )

    @property
    def least_parameters(self) -> int:
        layers = self.encoder_layers + self.decoder_layers
        return self.vocab_size * self.dim + layers * self.hidden * self.hidden // 4

    @property
    def is_luong(self) -> bool:
        return self.attention.startswith("luong-")
