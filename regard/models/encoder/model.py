"""A Transformer that reads: an encoder alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.models.encoder.config import EncoderConfig
from regard.models.encoder.heads import ClassesHead, WordsHead
from regard.models.language.stack import Stack
from regard.models.padding import Aligned, align
from regard.patterns import KeySpan
from regard.positions import Learned

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
        x = self._embed(ids, torch.arange(ids.shape[1], device=ids.device))
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
