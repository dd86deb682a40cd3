"""Classes as a task: which label has each text?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.text import BEGIN, END, Pair, Tokeniser
from regard.text.batches import TokenBatches, pad
from regard.training.encoder.order import in_order
from regard.training.fingerprint import hash_of


class LabelledTexts(NamedTuple):
    """ids: (batch, length); labels: (batch,), numbers of classes."""

    ids: torch.Tensor
    labels: torch.Tensor


class ClassificationTask:
    """What `train` asks of texts with labels: which class is each of?

    Its losses are sums over texts; a text counts as one target.

    Args:
        train: texts (`source`) and their labels (`target`) to learn from; valid: to validate on.
        classes: the labels there are, in the order of the model's scores.
        tokeniser: of the texts; each is read as BEGIN, its ids, END.
        batch_tokens: the most ids in a batch, padding included.
        seed: of the order of the batches.
        world, rank: how many processes train together, and which this is.
        longest: the most ids in a text; what is beyond is not read, and how many texts that befalls is in `cut`.

    Raises:
        ArgumentError: nothing to learn from, or a label that is no class.
    """

    def __init__(
        self,
        train: Sequence[Pair],
        valid: Sequence[Pair],
        classes: Sequence[str],
        tokeniser: Tokeniser,
        *,
        batch_tokens: int = 4096,
        seed: int = 0,
        world: int = 1,
        rank: int = 0,
        longest: int = 256,
    ) -> None:
        if not train:
            raise ArgumentError("no texts were given: there is nothing to learn from")
        self.classes = tuple(classes)
        self._tokeniser, self._longest = tokeniser, min(longest, batch_tokens)
        self.cut = 0
        self._train, self._valid = self.encode(train), self.encode(valid)
        self._batch_tokens = batch_tokens
        self.batches = TokenBatches([len(ids) for ids, _ in self._train], batch_tokens, seed, world, rank)
        self._settings = {"batch_tokens": batch_tokens, "longest": self._longest, "order": seed}

    def encode(self, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
        """Ids and number of the class of each text.

        Raises:
            ArgumentError: a label that is no class.
        """
        numbers = {label: number for number, label in enumerate(self.classes)}
        if strange := sorted({pair.target for pair in pairs} - numbers.keys()):
            raise ArgumentError(f"{strange[0]!r} is no class; there are {', '.join(self.classes[:20])}")
        encoded = [(self._tokeniser.encode(pair.source), numbers[pair.target]) for pair in pairs]
        room = self._longest - 2
        self.cut += sum(len(ids) > room for ids, _ in encoded)
        return [([BEGIN, *ids[:room], END], number) for ids, number in encoded]

    def batch(self, index: int) -> LabelledTexts:
        """The micro-batch number `index`, a function of it and of the seed."""
        return labelled([self._train[at] for at in self.batches.at(index)])

    def loss(self, model: torch.nn.Module, batch: LabelledTexts) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the classes in nats, and the number of texts."""
        return F.cross_entropy(model(batch.ids).float(), batch.labels, reduction="sum"), len(batch.labels)

    def validation_batches(self) -> Sequence[LabelledTexts]:
        return self._ordered(self._valid)

    validation_loss = loss

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module, pairs: Sequence[Pair]) -> float:
        """Share of texts whose class scores highest, 0 to 1."""
        model.eval()
        batches = self._ordered(self.encode(pairs))
        device = next(model.parameters()).device
        hits = sum(int((model(ids.to(device)).argmax(-1).cpu() == labels).sum()) for ids, labels in batches)
        return hits / len(pairs)

    def fingerprint(self) -> dict[str, Any]:
        """What tells these data, in this order, from others."""
        digest = hash_of(self._train, self._valid)
        return {"texts": len(self._train), "classes": list(self.classes), "hash": digest, **self._settings}

    def _ordered(self, texts: Sequence[tuple[list[int], int]]) -> list[LabelledTexts]:
        groups = in_order([ids for ids, _ in texts], self._batch_tokens)
        return [labelled([texts[at] for at in rows]) for rows in groups]


def labelled(texts: Sequence[tuple[list[int], int]]) -> LabelledTexts:
    """Ids and classes as tensors.

    >>> labelled([([2, 5, 3], 1), ([2, 3], 0)]).ids.tolist()
    [[2, 5, 3], [2, 3, 0]]
    """
    return LabelledTexts(pad([ids for ids, _ in texts]), torch.tensor([label for _, label in texts], dtype=torch.long))
