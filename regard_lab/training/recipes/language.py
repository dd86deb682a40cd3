"""`regard train language-model` from Python: settings, running text, a tokeniser, a LanguageModel, and its task.

LanguageModelTraining.of("run", {"data": ("text.txt",)}).train("run")
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.layers import choice_losses
from regard.reprs import Described, brief
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import WORDS_FILE
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.language import LAYER_OPTIONS
from regard_lab.text import BEGIN, END, PAD, Pair, Tokeniser
from regard_lab.text.batches import TokenBatches, parts_of_rows
from regard_lab.text.cleaning import tidy
from regard_lab.text.documents import read_documents
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import PRONOUNS
from regard_lab.training.config import setting
from regard_lab.training.loop import TrainingResult
from regard_lab.training.recipes.choosing import Amount, ChosenSettings
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.reading import TextParts, pronoun_sentences, read_parts
from regard_lab.training.recipes.recipe import SOME, Recipe, Requested, Training
from regard_lab.training.recipes.run_config import RunConfig, StackConfig

HELD_OUT = 0.05  # share of the characters
MOST_HELD_OUT = 1_000_000  # characters
CHOICE = ("chooser", "chosen", "chosen_block")


class LanguageModelTraining(Recipe):
    """Train a language model on running text.

    >>> LanguageModelTraining.Config(data=("text.txt",)).steps
    5000
    """

    COMMAND = "language-model"
    DATA = f"a file of text, a .jsonl of objects with a \"text\", or '{PRONOUNS}' for the embedded corpus"

    @brief
    @dataclass(frozen=True, kw_only=True)
    class Config(StackConfig):  # ty: ignore[incompatible-attribute-override]
        """Everything that decides the training of a language model.

        Args:
            data: UTF-8 text, or a .jsonl with "text"; may be repeated; or pronouns, the embedded corpus.
            valid: validation texts; without them the ends of the others are held out.
            block: ids in a row of a batch.
            latent_dim: latent attention with latents of this size, in place of keys and values of heads.
            from_run: go on from the model of this run with other text; it decides the model and its vocabulary.
            new_pieces: with --from, pieces of the new text that are added to the vocabulary, at most; 0 for none.
            rotary_scaling: scaling of rotary positions, for texts longer than those of a training: 'yarn(4, 1024)'.
            qk_norm: whether queries and keys of each head have a norm.
            output_gate: whether the outputs of the heads are multiplied by gates.
            value_residual: whether every layer adds the values of the first one to its own.
            differential: whether each head subtracts the output of a second one (Differential Transformer).
            forgetting: whether each head forgets earlier tokens by gates of its own (Forgetting Transformer).
            chooser: each query chooses keys by content: moba, nsa or indexer.
            chosen: number of blocks that it chooses.
            chosen_block: keys of a block; the indexer chooses as many single keys.
            norm: kind of normalisation: RMSNorm or LayerNorm.
            activation: activation of the feed-forward.
        """

        from_run: str | None = setting(None, option="--from", metavar="RUN")
        new_pieces: int | None = setting(None, least=0)
        block: int = setting(256, least=2)
        latent_dim: int | None = setting(None, least=1)
        rotary_scaling: str | None = setting(None, metavar="TEXT")
        qk_norm: bool = setting(False)
        output_gate: bool = setting(False)
        value_residual: bool = setting(False)
        differential: bool = setting(False)
        forgetting: bool = setting(False)
        chooser: str | None = setting(None, metavar="moba|nsa|indexer")
        chosen: int = setting(LanguageConfig.chosen, least=1)
        chosen_block: int = setting(LanguageConfig.chosen_block, least=1)
        norm: str = setting(LanguageConfig.norm, metavar="rms|layer")
        activation: str = setting(LanguageConfig.activation)

        def model_config(self, vocab_size: int) -> LanguageConfig:
            options = {name: getattr(self, name) for name in (*LAYER_OPTIONS, *CHOICE)}
            return LanguageConfig(
                vocab_size=vocab_size,
                norm=self.norm,
                activation=self.activation,
                latent_dim=self.latent_dim,
                rotary_scaling=self.rotary_scaling,
                **options,
                **self.model_settings(),
            )

    OF_THE_SOURCE = (
        "attention",
        "mechanism",
        "positions",
        "dim",
        "heads",
        "kv_heads",
        "layers",
        "latent_dim",
        "rotary_scaling",
        *LAYER_OPTIONS,
        *CHOICE,
        "norm",
        "activation",
        "max_length",
        "tokeniser",
        "vocab_size",
    )

    def choose(self, amount: Amount, requested: Requested) -> ChosenSettings:
        return self.choose_stack(amount, requested, self.config.block, **self.rate())

    def check_early(self, requested: Requested) -> None:
        super().check_early(requested)
        _check_block(replace(self.config, **self.choose(SOME, requested).settings))

    def prepare(self, begun: Path | None = None) -> Training:
        train, valid = read_running_text(self.config, self.tell)
        self.settle(Amount.of(train, "texts"))
        config = self.config
        _check_block(config)

        start = self.starting_model(begun, train)
        if start is None:
            lines = (line for text in train for line in text.split("\n"))
            self.remark_on_scripts(lines, config.tokeniser)
            tokeniser = Tokeniser.train(train, config.vocab_size, config.tokeniser, verbatim=True)
            model = LanguageModel(config.model_config(tokeniser.vocab_size))
        else:
            tokeniser = start.tokeniser
            model = LanguageModel.from_saved(start.saved, start.folder)

        task = LanguageTask(
            train,
            valid,
            tokeniser,
            block=config.block,
            batch_tokens=config.batch_tokens,
            seed=config.seed,
            **share_of_work(),
        )
        words_before = None if start is None else start.words
        words = Preparation.of(begun).words(train, tokeniser, words_before)

        def judge(folder: Path, result: TrainingResult) -> str | None:
            loss = result.valid_loss
            if loss is None:
                return None
            bits = task.bits_per_character(loss)
            return f"best validation {loss:.4f} nats an id, {bits:.3f} bits a character,"

        return self.ready(
            "a language model",
            model=model,
            task=task,
            tokeniser=tokeniser,
            learned=lines_of(train),
            judge=judge,
            files={WORDS_FILE: words},
        )


def _check_block(config: LanguageModelTraining.Config) -> None:
    """Raise an ArgumentError if a batch cannot hold a block, or if the model has no positions for one."""
    if config.block > config.batch_tokens:
        raise ArgumentError(
            f"--batch-tokens is {config.batch_tokens}, and a block of text has {config.block} ids; a batch holds at "
            f"least one block, so give --batch-tokens {config.block} or more"
        )
    if config.positions == "learned" and config.block > config.max_length:
        raise ArgumentError(
            f"block is {config.block}, but positions are learned up to max_length {config.max_length}"
        )


def read_running_text(config: RunConfig, tell: Tell = silent) -> TextParts:
    """Documents to learn from and to validate on; without files to validate on, the ends of the others."""
    if config.data == (PRONOUNS,):
        sentences = pronoun_sentences(config, tell)
        return TextParts([_joined(sentences.train)], [_joined(sentences.valid)])
    return read_parts(config, read_documents, HELD_OUT, MOST_HELD_OUT, tell)


def _joined(sentences: Sequence[str]) -> str:
    """One document, a sentence a line."""
    return "".join(f"{sentence}\n" for sentence in sentences)


def lines_of(texts: Sequence[str]) -> list[Pair]:
    """The distinct lines of texts that have words, as pairs without targets, by which an evaluation recognises them."""
    lines: dict[str, None] = {}  # a set that keeps their order
    for text in texts:
        lines |= dict.fromkeys(map(tidy, text.split("\n")))
    return [Pair(line, "") for line in lines if line]


class LanguageBatch(NamedTuple):
    """ids: (batch, length) that begin with BEGIN; next: (batch, length), what follows each. Padded on the right."""

    ids: torch.Tensor
    next: torch.Tensor


class Blocks:
    """Documents as ids, each closed by END and cut into blocks that follow each other; a last one may be shorter."""

    def __init__(self, documents: Sequence[str], tokeniser: Tokeniser, block: int) -> None:
        ids: list[int] = []  # of all documents
        self.cuts: list[tuple[int, int]] = []  # the first id of each block, and the end
        for text in documents:
            begin = len(ids)
            ids += [*tokeniser.encode(text), END]
            end = len(ids)
            self.cuts += [(start, min(start + block, end)) for start in range(begin, end, block)]
        self.ids = torch.tensor(ids, dtype=torch.int32)

    def batch(self, rows: Sequence[int]) -> LanguageBatch:
        """Blocks as tensors: BEGIN opens each."""
        cuts = [self.cuts[row] for row in rows]
        longest = max((stop - start for start, stop in cuts), default=0)
        batch = LanguageBatch(*torch.full((2, len(rows), longest), PAD))
        for row, (start, stop) in enumerate(cuts):
            block = self.ids[start:stop]
            batch.ids[row, 0] = BEGIN
            batch.ids[row, 1 : len(block)] = block[:-1]
            batch.next[row, : len(block)] = block
        return batch


class LanguageTask(Described):
    """What `train` needs of running text.

    A block is read as a text of its own, so that a model learns to begin anywhere: BEGIN and the ids before each are
    all that it sees of the past.

    Args:
        train: documents to learn from, as strings.
        valid: documents to validate on.
        tokeniser: of both, verbatim where spaces and line ends count.
        block: the most ids in a row, BEGIN included; what the model learns to look back.
        batch_tokens, seed, world, rank: as for `TokenBatches`.

    Raises:
        ArgumentError: nothing to learn from, or a block that is longer than a batch.
    """

    def __init__(
        self,
        train: Sequence[str],
        valid: Sequence[str],
        tokeniser: Tokeniser,
        *,
        block: int = LanguageModelTraining.Config.block,
        batch_tokens: int = LanguageModelTraining.Config.batch_tokens,
        seed: int = LanguageModelTraining.Config.seed,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        if not 2 <= block <= batch_tokens:
            raise ArgumentError(
                f"block is {block}; it needs 2 ids or more, and no more than batch_tokens {batch_tokens}"
            )
        if not train:
            raise ArgumentError("no documents were given: there is nothing to learn from")
        self._train = Blocks(train, tokeniser, block)
        self._valid = Blocks(valid, tokeniser, block)
        self._valid_characters = sum(map(len, valid))
        self._batch_tokens = batch_tokens
        self._block = block
        lengths = [stop - start for start, stop in self._train.cuts]
        self.batches = TokenBatches(lengths, batch_tokens, seed, world, rank)
        self._settings = {"block": block, "batch_tokens": batch_tokens, "order": seed}

    def batch(self, index: int) -> LanguageBatch:
        """The micro-batch number `index`, a function of it and of the seed."""
        return self._train.batch(self.batches.at(index))

    def parts(self, batch: LanguageBatch, count: int) -> list[LanguageBatch]:
        """The batch divided by its rows."""
        return [LanguageBatch(*part) for part in parts_of_rows(count, *batch)]

    def loss(self, model: torch.nn.Module, batch: LanguageBatch) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the next ids in nats, in training with the losses of indexers; and how many
        ids there are."""
        # Only training has the losses of indexers; a module without layers has none.
        learner = model if model.training else torch.nn.Module()
        with choice_losses(learner) as losses:
            scores = model(batch.ids)  # (batch, length, vocab_size)
        loss = F.cross_entropy(
            scores.flatten(0, 1).float(), batch.next.flatten(), ignore_index=PAD, reduction="sum"
        )
        return sum(losses, loss), int((batch.next != PAD).sum())

    def validation_batches(self) -> Sequence[LanguageBatch]:
        rows = range(len(self._valid.cuts))
        size = self._batch_tokens // self._block
        starts = range(0, len(rows), size)
        return [self._valid.batch(rows[start : start + size]) for start in starts]

    validation_loss = loss

    def bits_per_character(self, loss: float) -> float:
        """A validation loss in nats an id, as bits a character of the text.

            loss · ids / (characters · ln 2)

        The END of each document counts among the ids. Unlike the loss, it can be compared across tokenisers.

        Raises:
            ArgumentError: there is no validation text.
        """
        if not self._valid_characters:
            raise ArgumentError("there are no validation documents, so there are no bits to count")
        return loss * len(self._valid.ids) / (self._valid_characters * math.log(2))

    def fingerprint(self) -> dict[str, Any]:
        """What differs between these data, in this order, and others."""
        digest = hashlib.sha256()
        for blocks in (self._train, self._valid):
            digest.update(blocks.ids.numpy().tobytes())
            digest.update(repr(blocks.cuts).encode())
        return {"ids": len(self._train.ids), "hash": digest.hexdigest(), **self._settings}
