"""The text encoder: a vector for each token of a whole text, for masked words and for classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.models.language.config import EACH, LanguageConfig, in_turn
from regard.models.language.stack import Stack
from regard.models.layers import new_norm
from regard.models.padding import Aligned, align
from regard.patterns import KeySpan, Pattern, parse
from regard.positions import Learned

__all__ = ["TextEncoder", "EncoderConfig"]

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

    def _check_continued(self, pattern: Pattern) -> None:
        """An encoder reads whole texts, so every pattern is allowed."""


class WordsHead(nn.Module):
    """The word at a place: `norm(gelu(x W + b)) E' + c`, E the embeddings or a matrix of its own.

    Source: BERT, Devlin et al. 2019, section 3.1, task 1; its form is that of the authors' program.
    """

    def __init__(self, dim: int, vocab_size: int, norm: str, epsilon: float, tied: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = new_norm(norm, dim, epsilon)
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """(..., dim) -> (..., vocab_size)."""
        weight = embeddings if self.weight is None else self.weight
        return F.linear(self.norm(F.gelu(self.dense(x))), weight, self.bias)


class ClassesHead(nn.Module):
    """The class of a text: `tanh(pool(x) W + b) U + c`.

    Args:
        dim: of the vectors.
        classes: how many there are.
        pooling: "mean" over the places of a text, or its "first".
        dropout: share of the pooled vector dropped in training.

    Source: BERT, Devlin et al. 2019, sections 3 and 4.1 (the first place; its pooler is that of the authors' program).
    """

    def __init__(self, dim: int, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.to_classes = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor, living: torch.Tensor) -> torch.Tensor:
        """Vectors (batch, length, dim) and which places are no padding (batch, length) -> (batch, classes)."""
        if self.pooling == "first":
            pooled = x[:, 0]  # (batch, dim)
        else:
            seen = x.masked_fill(~living[:, :, None], 0.0)
            pooled = seen.sum(1) / living.sum(1, keepdim=True).clamp(min=1)
        return self.to_classes(self.dropout(torch.tanh(self.dense(pooled))))


SAME_WEIGHTS = {"head", "classes", "pooling", "pattern", "max_length", "dropout", "attention_dropout"}
SAME_WEIGHTS |= {"gradient_checkpointing"}


class TextEncoder(Stack):
    """Vectors of whole texts, and what its head makes of them: words that were hidden, or classes.

    Source: BERT: Pre-training of Deep Bidirectional Transformers, Devlin et al. 2019, section 3; long texts by patterns
    as in Longformer, Beltagy et al. 2020, section 3, and Big Bird, Zaheer et al. 2020, section 2.

    >>> reader = TextEncoder(EncoderConfig(vocab_size=100, dim=32, heads=4)).eval()
    >>> reader(torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])).shape
    torch.Size([2, 4, 100])
    >>> sorter = reader.changed(head="classes", classes=3)
    >>> sorter(torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])).shape
    torch.Size([2, 3])
    """

    KIND = "text-encoder"
    Config = EncoderConfig

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.config: EncoderConfig = config
        self.head = new_head(config)
        self._initialise()

    def forward(self, ids: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """What the head says of texts.

        Args:
            ids: (batch, length), padded with PAD on either side.
            places: for words, score these alone: bool (batch, length), in the order of rows.

        Returns:
            Head "words": (batch, length, vocab_size), or (places, vocab_size) of those that were named.
            Head "classes": (batch, classes). Head "none": (batch, length, dim), see `vectors`.

        Raises:
            ArgumentError: ids outside the vocabulary, or places for another head.
            ShapeError: ids or places of another rank, size or dtype.
        """
        aligned = align(ids)
        if places is not None:
            if not isinstance(places, torch.Tensor):
                raise ArgumentError(f"places are {shown(places)}; they are a bool tensor (batch, length)")
            self._check_places(ids, places)
        x = self._read(aligned)
        if isinstance(self.head, ClassesHead):
            return self.head(x, living(aligned))
        x = aligned.put_back(x)
        if isinstance(self.head, WordsHead):
            return self.head(x if places is None else x[places], self.embedding.weight)
        return x

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """What the last layer says of each place, whatever the head: (batch, length) -> (batch, length, dim)."""
        aligned = align(ids)
        return aligned.put_back(self._read(aligned))

    def changed(self, **settings: Any) -> TextEncoder:
        """Another encoder with some settings changed and all weights that it shares with this one: transfer.

        A new head begins with weights of its own. Learned positions beyond those of this one repeat them from the
        first, so that longer texts begin with what short ones taught.

        Args:
            settings: head, classes, pooling, pattern, max_length, dropout, attention_dropout, gradient_checkpointing.

        Raises:
            ArgumentError: another setting, which would need other weights.

        Source: of the positions, Longformer, Beltagy et al. 2020, section 5.
        """
        if strange := sorted(settings.keys() - SAME_WEIGHTS):
            raise ArgumentError(
                f"{', '.join(strange)} cannot be changed in a trained encoder; what can be is "
                f"{', '.join(sorted(SAME_WEIGHTS))}"
            )
        if settings.get("head", self.config.head) != "classes":
            settings = {"classes": None, **settings}
        other = TextEncoder(replace(self.config, **settings)).to(self.embedding.weight)
        same_head = (other.config.head, other.config.classes) == (self.config.head, self.config.classes)
        weights = {name: tensor for name, tensor in self.state_dict().items() if same_head or "head." not in name}
        if isinstance(other.positions, Learned):
            weights["positions.weight"] = tiled(weights["positions.weight"], other.config.max_length)
        other.load_state_dict(weights, strict=same_head)
        return other.train(self.training)

    def _read(self, aligned: Aligned) -> torch.Tensor:
        """Vectors (batch, length, dim) of ids whose padding is all on the right."""
        if aligned.span is None or not self.config.by_length:
            return self._stacked(aligned.ids, aligned.span)
        lengths = living(aligned).sum(1)
        x = self.embedding.weight.new_zeros(*aligned.ids.shape, self.config.dim)
        for length in lengths.unique().tolist():  # texts of one length at a time see what each would see alone
            rows = lengths == length
            x[rows, :length] = self._stacked(aligned.ids[rows, :length], None).to(x.dtype)
        return x

    def _stacked(self, ids: torch.Tensor, live: KeySpan | None) -> torch.Tensor:
        x = self._embed_texts(ids, torch.arange(ids.shape[1], device=ids.device))
        for block in self._blocks():
            x = self._through(block, x, live)  # (batch, length, dim)
        return self.norm(x)

    def _check_places(self, ids: torch.Tensor, places: torch.Tensor) -> None:
        if not isinstance(self.head, WordsHead):
            raise ArgumentError(f"places were named, but this head is {self.config.head!r}; places are of 'words'")
        if places.shape != ids.shape or places.dtype != torch.bool:
            raise ShapeError(
                f"places are {places.dtype} {tuple(places.shape)}; they are bool {tuple(ids.shape)}, as ids"
            )

    def _initialise_head(self, deviation: float) -> None:
        if isinstance(self.head, WordsHead) and self.head.weight is not None:
            nn.init.normal_(self.head.weight, std=deviation)


def new_head(config: EncoderConfig) -> WordsHead | ClassesHead | None:
    """The head that a config names."""
    if config.head == "words":
        return WordsHead(config.dim, config.vocab_size, config.norm, config.epsilon, config.tied)
    if config.head == "classes":
        assert config.classes is not None
        return ClassesHead(config.dim, config.classes, config.pooling, config.dropout)
    return None


def living(aligned: Aligned) -> torch.Tensor:
    """Which places of aligned ids hold a text: bool (batch, length)."""
    places = torch.arange(aligned.ids.shape[1], device=aligned.ids.device)
    if aligned.span is None:
        return torch.ones_like(aligned.ids, dtype=torch.bool)
    stop = aligned.span.stop
    assert isinstance(stop, torch.Tensor)
    return places < stop[:, None]


def tiled(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Learned positions (old length, dim), repeated or cut to (length, dim).

    >>> tiled(torch.tensor([[1.0], [2.0]]), 5)[:, 0].tolist()
    [1.0, 2.0, 1.0, 2.0, 1.0]
    """
    repeats = -(-length // len(positions))
    return positions.repeat(repeats, 1)[:length]
