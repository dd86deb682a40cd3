"""Hidden words as a task: which words stood where the text is hidden?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.text import BEGIN, END, Tokeniser
from regard.text.batches import TokenBatches, pad
from regard.text.vocabularies import SPECIALS, UNKNOWN
from regard.training.encoder.order import in_order
from regard.training.fingerprint import hash_of

MASK = UNKNOWN  # what stands where a word is hidden; no text is encoded as it


class HiddenWords(NamedTuple):
    """ids: (batch, length), some of them hidden; places: bool (batch, length), which are asked for; words: (places,),
    what stood there."""

    ids: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


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


def pieces(ids: list[int], longest: int) -> list[list[int]]:
    """A text in pieces of at most `longest` ids, each between BEGIN and END; nothing for an empty one.

    >>> pieces([5, 6, 7], 4)
    [[2, 5, 6, 3], [2, 7, 3]]
    """
    room = longest - 2
    return [[BEGIN, *ids[start : start + room], END] for start in range(0, len(ids), room)]


def seeded(*names: str | int) -> torch.Generator:
    """A generator whose draws are a function of what is named."""
    digest = hashlib.sha256(" ".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
