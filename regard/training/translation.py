"""Translation as a task: batches of sentence pairs by token budget, cross entropy of each next target id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.text import BEGIN, END, PAD, Pair, Tokeniser
from regard.text.batches import TokenBatches, TranslationBatch, batches_in_order, encode_pairs, make_batch
from regard.training.fingerprint import hash_of

# What a process reads in a step whose sentences the others have: a place that no loss counts, so that gradients meet.
NOTHING = TranslationBatch(torch.tensor([[END]]), torch.tensor([[BEGIN]]), torch.tensor([[PAD]]))


class TranslationTask:
    """What `train` asks of pairs of sentences.

    Args:
        train: pairs to learn from.
        valid: pairs to validate on, in their order.
        tokeniser: of both sides.
        batch_tokens: the most ids on the longer side of one batch, padding included.
        label_smoothing: share of the probability that is spread over all ids.
        seed: of the order of the batches.
        world, rank: how many processes train together, and which this is.
        longest: pairs with more ids on a side are left out of training; how many is in `left_out`.

    Source of the smoothing: Szegedy et al. 2016, section 7.

    Raises:
        ArgumentError: nothing to learn from, or smoothing outside 0 to 1.
    """

    def __init__(
        self,
        train: Sequence[Pair],
        valid: Sequence[Pair],
        tokeniser: Tokeniser,
        *,
        batch_tokens: int = 2048,
        label_smoothing: float = 0.1,
        seed: int = 0,
        world: int = 1,
        rank: int = 0,
        longest: int = 256,
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ArgumentError(f"label_smoothing is {label_smoothing}; it is a share from 0 to below 1")
        longest = min(longest, batch_tokens)
        pairs = encode_pairs(train, tokeniser)
        self._train = [pair for pair in pairs if max(map(len, pair)) < longest]
        self.left_out = len(pairs) - len(self._train)
        if not self._train:
            raise ArgumentError(
                f"none of {len(pairs)} pairs has fewer than {longest} ids on both sides: there is nothing to learn from"
            )
        self._valid = [pair for pair in encode_pairs(valid, tokeniser) if max(map(len, pair)) < longest]
        self.label_smoothing = label_smoothing
        self._batch_tokens = batch_tokens
        lengths = [(len(source) + 1, len(target) + 1) for source, target in self._train]
        self.batches = TokenBatches(lengths, batch_tokens, seed, world, rank)
        self._settings = {"batch_tokens": batch_tokens, "label_smoothing": label_smoothing, "order": seed}

    def batch(self, index: int) -> TranslationBatch:
        """The micro-batch number `index`, a function of it and of the seed."""
        rows = self.batches.at(index)
        return make_batch([self._train[at] for at in rows]) if rows else NOTHING

    def loss(self, model: torch.nn.Module, batch: TranslationBatch) -> tuple[torch.Tensor, int]:
        """Sum of the smoothed cross entropies over the target ids, and their number."""
        return self._cross_entropy(model, batch, self.label_smoothing)

    def validation_batches(self) -> Sequence[TranslationBatch]:
        return self._validation

    def validation_loss(self, model: torch.nn.Module, batch: TranslationBatch) -> tuple[torch.Tensor, int]:
        """Sum of the plain cross entropies in nats, and the number of target ids."""
        return self._cross_entropy(model, batch, 0.0)

    def fingerprint(self) -> dict[str, Any]:
        """What tells these data, in this order, from others."""
        digest = hash_of(self._train, self._valid)
        return {"pairs": len(self._train), "ids": digest, **self._settings}

    @cached_property
    def _validation(self) -> list[TranslationBatch]:
        return [batch for _, batch in batches_in_order(self._valid, self._batch_tokens)]

    @staticmethod
    def _cross_entropy(model: torch.nn.Module, batch: TranslationBatch, smoothing: float) -> tuple[torch.Tensor, int]:
        scores = model(batch.source, batch.target)  # (batch, target_length, vocab_size)
        loss = F.cross_entropy(
            scores.flatten(0, 1).float(), batch.next.flatten(), ignore_index=PAD, label_smoothing=smoothing,
            reduction="sum",
        )  # fmt: skip
        return loss, int((batch.next != PAD).sum())
