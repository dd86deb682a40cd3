"""`regard train masked-words` from Python: settings, texts, a tokeniser, a TextEncoder, and its task.

MaskedWordsTraining.of("run", {"data": ("text.txt",)}).train("run")
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard.reprs import Described, brief
from regard_lab.decoding.lines import share_of_work
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import BEGIN, END, Tokeniser
from regard_lab.text.batches import TokenBatches, in_order, pad, parts_of_rows
from regard_lab.text.documents import read_texts
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import PRONOUNS
from regard_lab.text.vocabularies import SPECIALS, UNKNOWN
from regard_lab.training.config import setting
from regard_lab.training.identity import hash_of
from regard_lab.training.loop import TrainingResult
from regard_lab.training.recipes.choosing import Amount, ChosenSettings
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.reading import TextParts, pronoun_sentences, read_parts
from regard_lab.training.recipes.recipe import Recipe, Requested, Training
from regard_lab.training.recipes.run_config import RunConfig, StackConfig

HELD_OUT = 0.05  # share of the characters
MOST_HELD_OUT = 200_000  # characters
MASK = UNKNOWN  # what stands where a word is hidden; no text is encoded as it
# Of the words that are to be found; the others stay.
HIDDEN = 0.8
HIDDEN_OR_DRAWN = 0.9


@brief
@dataclass(frozen=True, kw_only=True)
class EncoderRunConfig(StackConfig):
    """Everything that decides the training of an encoder.

    Args:
        longest: largest number of ids of a text.
    """

    longest: int = setting(256, least=3)

    def new_tokeniser(self, texts: list[str], preparation: Preparation) -> Tokeniser:
        return Tokeniser.train(
            texts, self.vocab_size, self.tokeniser, keep_invisible=preparation.keep_invisible
        )

    def model_config(self, vocab_size: int, **head: Any) -> EncoderConfig:
        return EncoderConfig(vocab_size=vocab_size, **head, **self.model_settings())


class MaskedWordsTraining(Recipe):
    """Train an encoder to predict hidden words, a text a line.

    >>> MaskedWordsTraining.Config(data=("text.txt",)).longest
    256
    """

    COMMAND = "masked-words"
    DATA = (
        'a file of text, a text a line, a .jsonl of objects with a "text", '
        f"or '{PRONOUNS}' for the embedded corpus"
    )

    @brief
    @dataclass(frozen=True, kw_only=True)
    class Config(EncoderRunConfig):  # ty: ignore[incompatible-attribute-override]
        """Everything that decides the training of an encoder on hidden words.

        Args:
            data: UTF-8 text, a text a line, or a .jsonl with "text"; may be repeated; or pronouns, the embedded corpus.
            valid: validation texts; without them the last of the others are held out.
        """

    def choose(self, amount: Amount, requested: Requested) -> ChosenSettings:
        return self.choose_stack(amount, requested, self.config.longest)

    def prepare(self, begun: Path | None = None) -> Training:
        train, valid = read_lines_of_text(self.config, self.tell)
        self.settle(Amount.of(train, "texts"))
        config = self.config
        self.remark_on_scripts(train, config.tokeniser)
        tokeniser = config.new_tokeniser(train, Preparation.of(begun))
        model = TextEncoder(config.model_config(tokeniser.vocab_size))
        task = MaskedWordTask(
            train,
            valid,
            tokeniser,
            batch_tokens=config.batch_tokens,
            seed=config.seed,
            longest=config.longest,
            **share_of_work(),
        )
        return self.ready("an encoder", model=model, task=task, tokeniser=tokeniser, judge=_judge)


def read_lines_of_text(config: RunConfig, tell: Tell = silent) -> TextParts:
    """Texts to learn from and to validate on; without files to validate on, the last of the others."""
    if config.data == (PRONOUNS,):
        return pronoun_sentences(config, tell)
    return read_parts(config, read_texts, HELD_OUT, MOST_HELD_OUT, tell)


def _judge(folder: Path, result: TrainingResult) -> str | None:
    loss = result.valid_loss
    if loss is None:
        return None
    return f"best validation {loss:.4f} nats a word (perplexity {math.exp(loss):.1f})"


class HiddenWords(NamedTuple):
    """ids: (batch, length), some of them hidden; places: bool (batch, length), which are to be found; words: (places,),
    what stood there."""

    ids: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


def hide_words(
    ids: torch.Tensor, vocab_size: int, generator: torch.Generator, share: float = 0.15
) -> HiddenWords:
    """Hide words that are to be found again: `share` of each text's, at least one.

    Of those to be found, 80 in 100 become MASK, 10 another word drawn from all, and 10 stay, so that a model must have
    an opinion on every place. PAD, BEGIN and END are never hidden.

    Args:
        ids: (batch, length).
        share: of the words of each text.

    Source: BERT, Devlin et al. 2019, section 3.1, task 1, and appendix A.1.

    >>> hidden = hide_words(torch.tensor([[2, 5, 6, 7, 3]]), 100, torch.Generator().manual_seed(0))
    >>> hidden.places.sum().item(), hidden.words.shape
    (1, torch.Size([1]))
    """
    is_word = ids >= len(SPECIALS)
    words = is_word.sum(1)  # (batch,)
    asked = (words * share).round().clamp(min=1).minimum(words)  # (batch,)
    # The words that draw the lowest numbers; 2.0 is above all draws.
    draws = torch.rand(ids.shape, generator=generator).masked_fill(~is_word, 2.0)
    ranks = draws.argsort(1).argsort(1)  # (batch, length)
    places = ranks < asked[:, None]

    lots = torch.rand(ids.shape, generator=generator)
    drawn_words = torch.randint(len(SPECIALS), vocab_size, ids.shape, generator=generator)
    drawn_or_same = torch.where(lots < HIDDEN_OR_DRAWN, drawn_words, ids)
    seen = torch.where(lots < HIDDEN, MASK, drawn_or_same)
    return HiddenWords(torch.where(places, seen, ids), places, ids[places])


class MaskedWordTask(Described):
    """What `train` needs of texts whose words are hidden: which words were they?

    Each text is read as BEGIN, its ids, END; a longer one is cut into pieces. What is hidden in a batch is a function
    of the seed and the batch's number, so that words are hidden again in each epoch and a resumed run hides the same.

    Args:
        train: texts to learn from; valid: texts to validate on, the same words hidden each time.
        tokeniser: of both.
        batch_tokens, seed, world, rank: as for `TokenBatches`; the seed decides what is hidden too.
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
        batch_tokens: int = MaskedWordsTraining.Config.batch_tokens,
        seed: int = MaskedWordsTraining.Config.seed,
        world: int = 1,
        rank: int = 0,
        longest: int = MaskedWordsTraining.Config.longest,
    ) -> None:
        longest = min(longest, batch_tokens)
        self._train = _pieces_of_all(train, tokeniser, longest)
        self._valid = _pieces_of_all(valid, tokeniser, longest)
        if not self._train:
            raise ArgumentError(
                f"no words are in {count_of(len(train), 'texts')}: there is nothing to learn from"
            )
        self._vocab_size = tokeniser.vocab_size
        self._seed = seed
        self._rank = rank
        self._batch_tokens = batch_tokens
        lengths = list(map(len, self._train))
        self.batches = TokenBatches(lengths, batch_tokens, seed, world, rank)
        self._settings = {"batch_tokens": batch_tokens, "longest": longest, "order": seed}

    def batch(self, index: int) -> HiddenWords:
        """The micro-batch number `index` with its words hidden, a function of it and of the seed."""
        rows = [self._train[row] for row in self.batches.at(index)]
        generator = seeded("train", self._seed, index, self._rank)
        return hide_words(pad(rows), self._vocab_size, generator)

    def parts(self, batch: HiddenWords, count: int) -> list[HiddenWords]:
        """The batch divided by its rows; the words of a part are those of its places."""
        parts = []
        start = 0
        for ids, places in parts_of_rows(count, batch.ids, batch.places):
            stop = start + int(places.sum())
            parts.append(HiddenWords(ids, places[:, : ids.shape[1]], batch.words[start:stop]))
            start = stop
        return parts

    def loss(self, model: torch.nn.Module, batch: HiddenWords) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the words that are to be found, and their number."""
        scores = model(batch.ids, batch.places)  # (places, vocab_size)
        return F.cross_entropy(scores.float(), batch.words, reduction="sum"), len(batch.words)

    def validation_batches(self) -> Sequence[HiddenWords]:
        lengths = list(map(len, self._valid))
        batches = []
        for number, indices in enumerate(in_order(lengths, self._batch_tokens)):
            rows = [self._valid[index] for index in indices]
            batches.append(hide_words(pad(rows), self._vocab_size, seeded("valid", number)))
        return batches

    validation_loss = loss

    def fingerprint(self) -> dict[str, Any]:
        """What differs between these data, in this order, and others."""
        return {
            "texts": len(self._train),
            "hash": hash_of(self._train, self._valid),
            **self._settings,
        }


def _pieces_of_all(texts: Sequence[str], tokeniser: Tokeniser, longest: int) -> list[list[int]]:
    """The pieces of texts, in order."""
    all_pieces = []
    for text in texts:
        all_pieces += pieces(tokeniser.encode(text), longest)
    return all_pieces


def pieces(ids: list[int], longest: int) -> list[list[int]]:
    """A text in pieces of at most `longest` ids, each between BEGIN and END; nothing for an empty one.

    >>> pieces([5, 6, 7], 4)
    [[2, 5, 6, 3], [2, 7, 3]]
    """
    room = longest - 2
    return [[BEGIN, *ids[start : start + room], END] for start in range(0, len(ids), room)]


def seeded(*names: str | int) -> torch.Generator:
    """A generator whose draws are a function of what is named."""
    text = " ".join(map(str, names))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
