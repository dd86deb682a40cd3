"""Reading as a task: words that are hidden and found again, and texts with a label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.text import BEGIN, END, Pair, Tokeniser
from regard.text.batches import TokenBatches, pad
from regard.text.vocabularies import SPECIALS, UNKNOWN

MASK = UNKNOWN  # what stands where a word is hidden; no text is encoded as it


class HiddenWords(NamedTuple):
    """ids: (batch, length), some of them hidden; places: bool (batch, length), which are asked for; words: (places,),
    what stood there."""

    ids: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


class LabelledTexts(NamedTuple):
    """ids: (batch, length); labels: (batch,), numbers of classes."""

    ids: torch.Tensor
    labels: torch.Tensor


def hide_words(ids: torch.Tensor, vocab_size: int, generator: torch.Generator, share: float = 0.15) -> HiddenWords:
    """Hide words that are to be found again: `share` of each text's, at least one.

    Of those asked for, 80 in 100 become MASK, 10 another word drawn from all, and 10 stay, so that a model must have
    an opinion on every place. PAD, BEGIN and END are never asked for.

    Args:
        ids: (batch, length).
        vocab_size: ids there are.
        generator: of every draw.
        share: of the words of each text.

    Source: BERT, Devlin et al. 2019, section 3.1, task 1, and appendix A.1.

    >>> found = hide_words(torch.tensor([[2, 5, 6, 7, 3]]), 100, torch.Generator().manual_seed(0))
    >>> found.places.sum().item(), found.words.shape
    (1, torch.Size([1]))
    """
    is_word = ids >= len(SPECIALS)
    counts = is_word.sum(1)
    asked = (counts * share).round().clamp(min=1).minimum(counts)  # (batch,)
    draws = torch.rand(ids.shape, generator=generator).masked_fill(~is_word, 2.0)
    ranks = draws.argsort(1).argsort(1)  # (batch, length)
    places = ranks < asked[:, None]
    lots = torch.rand(ids.shape, generator=generator)
    others = torch.randint(len(SPECIALS), vocab_size, ids.shape, generator=generator)
    seen = torch.where(lots < 0.8, MASK, torch.where(lots < 0.9, others, ids))
    return HiddenWords(torch.where(places, seen, ids), places, ids[places])


class MaskedWordTask:
    """What `train` asks of texts whose words are hidden: which words were they?

    Each text is read as BEGIN, its ids, END; a longer one is cut into pieces. What is hidden in a batch is a function
    of the seed and the batch's number, so that words are hidden anew in each epoch and a resumed run hides the same.

    Args:
        train: texts to learn from; valid: texts to validate on, the same words hidden each time.
        tokeniser: of both.
        batch_tokens: the most ids in a batch, padding included.
        seed: of the order of the batches and of what is hidden.
        world, rank: how many processes train together, and which this is.
        longest: the most ids in a text, BEGIN and END included.

    Source: BERT, Devlin et al. 2019, section 3.1.

    Raises:
        ArgumentError: nothing to learn from.
    """

    def __init__(
        self,
        train: Sequence[str],
        valid: Sequence[str],
        tokeniser: Tokeniser,
        *,
        batch_tokens: int = 4096,
        seed: int = 0,
        world: int = 1,
        rank: int = 0,
        longest: int = 256,
    ) -> None:
        longest = min(longest, batch_tokens)
        self._train, self._valid = (
            [piece for text in texts for piece in pieces(tokeniser.encode(text), longest)] for texts in (train, valid)
        )
        if not self._train:
            raise ArgumentError(f"{len(train)} texts hold no words: there is nothing to learn from")
        self._vocab_size, self._seed, self._rank = tokeniser.vocab_size, seed, rank
        self._batch_tokens = batch_tokens
        self.batches = TokenBatches(list(map(len, self._train)), batch_tokens, seed, world, rank)
        self._settings = {"batch_tokens": batch_tokens, "longest": longest, "order": seed}

    def batch(self, index: int) -> HiddenWords:
        """The micro-batch number `index` with its words hidden, a function of it and of the seed."""
        rows = [self._train[at] for at in self.batches.at(index)]
        return hide_words(pad(rows), self._vocab_size, seeded("train", self._seed, index, self._rank))

    def loss(self, model: torch.nn.Module, batch: HiddenWords) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the words that were asked for, and their number."""
        scores = model(batch.ids, batch.places)  # (places, vocab_size)
        return F.cross_entropy(scores.float(), batch.words, reduction="sum"), len(batch.words)

    def validation_batches(self) -> Sequence[HiddenWords]:
        return [
            hide_words(pad([self._valid[at] for at in rows]), self._vocab_size, seeded("valid", number))
            for number, rows in enumerate(in_order(self._valid, self._batch_tokens))
        ]

    validation_loss = loss

    def fingerprint(self) -> dict[str, Any]:
        """What tells these data, in this order, from others."""
        return {"texts": len(self._train), "hash": hash_of(self._train, self._valid), **self._settings}


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


def pieces(ids: list[int], longest: int) -> list[list[int]]:
    """A text in pieces of at most `longest` ids, each between BEGIN and END; nothing for an empty one.

    >>> pieces([5, 6, 7], 4)
    [[2, 5, 6, 3], [2, 7, 3]]
    """
    room = longest - 2
    return [[BEGIN, *ids[start : start + room], END] for start in range(0, len(ids), room)]


def in_order(texts: Sequence[list[int]], budget: int) -> list[list[int]]:
    """Indices of texts, neighbours in length together, within a budget of ids; a text above it stands alone.

    >>> in_order([[1] * 5, [1] * 2, [1] * 3], 6)
    [[1, 2], [0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(texts)), key=lambda at: len(texts[at])):
        if groups and (len(groups[-1]) + 1) * len(texts[index]) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def seeded(*names: str | int) -> torch.Generator:
    """A generator whose draws are a function of what is named."""
    digest = hashlib.sha256(" ".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def hash_of(*parts: Sequence[Any]) -> str:
    """A hash of lists of numbers, and of where one list ends."""
    digest = hashlib.sha256()
    for part in parts:
        for text in part:
            digest.update(repr(text).encode())
        digest.update(b"/")
    return digest.hexdigest()
