"""The text encoder: a vector for each token of a whole text, for masked words and for classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import a_tensor
from regard.core.keywords import OF_MODELS, refusing_keywords
from regard.errors import ArgumentError
from regard.patterns import KeySpan, Pattern, parse
from regard.positions import Learned
from regard.reprs import brief
from regard_lab.models.base import Aligned, align
from regard_lab.models.language import EACH, LanguageConfig, Stack, in_turn
from regard_lab.models.layers import new_norm

__all__ = ["TextEncoder", "EncoderConfig"]

HEADS = ("words", "classes", "none")
POOLINGS = ("mean", "first")


@brief
@dataclass(frozen=True, kw_only=True)
class EncoderConfig(LanguageConfig):
    """The config of a TextEncoder: that of a LanguageModel, but each token may look at the whole text by default.

    BERT has positions="learned"; its norms come after each part, here they come first.

    Args:
        pattern: allowed pairs, as text; or several texts, which the layers use in turn. Longformer:
            "sliding_window(256) | global_tokens(0)"; BigBird adds "| random_blocks(3, block=64, seed=0)".
        head: the output: "words" (logits of the id at each position), "classes" (logits of each text) or "none" (the
            vectors).
        classes: number of classes, for head="classes".
        pooling: the vector of a text: "mean" over its positions, or the "first" one.

    Raises:
        ArgumentError, UnsupportedError: invalid sizes or choices, or choices that exclude each other.

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
            raise ArgumentError(
                f"head is {self.head!r} and classes is {self.classes}; give classes= with head='classes' only"
            )
        if self.classes is not None:
            self.check_sizes("classes")

    def pattern_of(self, layer: int) -> Pattern:
        """The pattern of a layer, counted from 0."""
        return parse(in_turn(self.pattern, layer))

    @property
    def by_length(self) -> bool:
        """Whether the pattern of some layer depends on the length of a text."""
        return any(self.pattern_of(layer).by_length for layer in range(self.layers))

    def _check_continued(self, pattern: Pattern) -> None:
        """An encoder reads whole texts, so every pattern is allowed."""


class WordsHead(nn.Module):
    """Logits of the id at each position: `norm(gelu(x W + b)) E' + c`; E is the embeddings or a matrix of its own.

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
    """Logits of the classes of a text: `tanh(pool(x) W + b) U + c`; pooling is the mean, or the first position.

    Source: BERT, Devlin et al. 2019, sections 3 and 4.1 (the first position; the pooler is that of the authors'
    program).
    """

    def __init__(self, dim: int, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.to_classes = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
        """Vectors (batch, length, dim) and a mask of positions without padding (batch, length) -> (batch, classes)."""
        if self.pooling == "first":
            pooled = x[:, 0]  # (batch, dim)
        else:
            without_padding = x.masked_fill(~is_text[:, :, None], 0.0)
            pooled = without_padding.sum(1) / is_text.sum(1, keepdim=True).clamp(min=1)
        return self.to_classes(self.dropout(torch.tanh(self.dense(pooled))))


# Settings that need no other weights but those of the head, or more of its positions.
CHANGEABLE = frozenset(
    (
        "head",
        "classes",
        "pooling",
        "pattern",
        "max_length",
        "dropout",
        "attention_dropout",
        "gradient_checkpointing",
    )
)


class TextEncoder(Stack):
    """An encoder-only Transformer: vectors of a whole text, logits of masked words, or classes.

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
        self.head: WordsHead | ClassesHead | None = None
        if config.head == "words":
            self.head = WordsHead(
                config.dim, config.vocab_size, config.norm, config.epsilon, config.tied
            )
        elif config.classes is not None:
            self.head = ClassesHead(config.dim, config.classes, config.pooling, config.dropout)
        self._initialise()

    @refusing_keywords("TextEncoder", OF_MODELS)
    def forward(self, ids: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """The output of the head for a batch of texts.

        Args:
            ids: (batch, length), padded with PAD on either side.
            places: for head "words", score only these positions: bool (batch, length).

        Returns:
            Head "words": (batch, length, vocab_size), or (number of True places, vocab_size) in the order of the rows.
            Head "classes": (batch, classes). Head "none": (batch, length, dim), see `vectors`.

        Raises:
            ArgumentError: ids outside the vocabulary, or places with another head.
            ShapeError: ids or places of another rank, size or dtype.
        """
        aligned = align(ids)
        if places is not None:
            if not isinstance(self.head, WordsHead):
                raise ArgumentError(
                    f"places are given to the head {self.config.head!r}; they are for head='words'"
                )
            needs = f"bool {tuple(ids.shape)}, the shape of ids"
            a_tensor("places", places, needs, [ids.shape], torch.bool)
        x = self._read(aligned)
        if isinstance(self.head, ClassesHead):
            return self.head(x, text_mask(aligned))
        x = aligned.put_back(x)
        if not isinstance(self.head, WordsHead):
            return x
        if places is not None:
            x = x[places]
        return self.head(x, self.embedding.weight)

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """The normalised output of the last layer, with any head: (batch, length) -> (batch, length, dim)."""
        aligned = align(ids)
        return aligned.put_back(self._read(aligned))

    def changed(self, **settings: Any) -> TextEncoder:
        """A copy of the encoder with some settings changed, for fine-tuning; it copies all weights that both have.

        A new head starts with new weights. Learned positions beyond the old ones repeat them from the first, so that
        longer texts start from the learned positions.

        Args:
            settings: head, classes, pooling, pattern, max_length, dropout, attention_dropout, gradient_checkpointing.

        Raises:
            ArgumentError: a setting that would need other weights.

        Source: copied positions, Longformer, Beltagy et al. 2020, section 5.
        """
        fixed = sorted(settings.keys() - CHANGEABLE)
        if fixed:
            raise ArgumentError(
                f"{', '.join(fixed)} cannot be changed in a trained encoder; settings that can are "
                f"{', '.join(sorted(CHANGEABLE))}"
            )
        if settings.get("head", self.config.head) != "classes":
            settings = {"classes": None, **settings}
        config = replace(self.config, **settings)
        changed = TextEncoder(config).to(self.embedding.weight)

        weights = self.state_dict()
        has_same_head = config.head == self.config.head and config.classes == self.config.classes
        if not has_same_head:
            weights = {name: weights[name] for name in weights if "head." not in name}
        if isinstance(changed.positions, Learned):
            table = weights["positions.weight"]
            copies = math.ceil(config.max_length / len(table))
            weights["positions.weight"] = table.repeat(copies, 1)[: config.max_length]
        changed.load_state_dict(weights, strict=has_same_head)
        return changed.train(self.training)

    def _read(self, aligned: Aligned) -> torch.Tensor:
        """The vectors (batch, length, dim) of ids with all padding on the right."""
        if aligned.span is None or not self.config.by_length:
            return self._run_layers(aligned.ids, aligned.span)

        # The pattern depends on the length: one length at a time.
        lengths = text_mask(aligned).sum(1)
        x = self.embedding.weight.new_zeros(*aligned.ids.shape, self.config.dim)
        for length in lengths.unique().tolist():
            rows = lengths == length
            x[rows, :length] = self._run_layers(aligned.ids[rows, :length], None).to(x.dtype)
        return x

    def _run_layers(self, ids: torch.Tensor, live: KeySpan | None) -> torch.Tensor:
        x = self._embed_texts(ids, torch.arange(ids.shape[1], device=ids.device))
        values = self._first_values(x)
        for block in self._blocks():
            x = self._through(block, x, live, None, values)  # (batch, length, dim)
        return self.norm(x)

    def _initialise_head(self, deviation: float) -> None:
        if isinstance(self.head, WordsHead) and self.head.weight is not None:
            nn.init.normal_(self.head.weight, std=deviation)


def text_mask(aligned: Aligned) -> torch.Tensor:
    """Mask of the positions of aligned ids without padding: bool (batch, length)."""
    if aligned.span is None:
        return torch.ones_like(aligned.ids, dtype=torch.bool)
    stop = aligned.span.stop
    assert isinstance(stop, torch.Tensor)
    places = torch.arange(aligned.ids.shape[1], device=aligned.ids.device)
    return places < stop[:, None]
