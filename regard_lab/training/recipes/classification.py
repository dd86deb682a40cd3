"""`regard train classifier` and `regard classify` from Python: texts with labels, an encoder that sorts them.

ClassifierTraining.of("run", {"data": ("labels.tsv",)}).train("run")
Classifier.load("run").probabilities(["a text"])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError, NotFoundError
from regard.reprs import Described, brief
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import WORDS_FILE, load_with_tokeniser, seen_words_of
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import BEGIN, END, Pair, Tokeniser, split_by_hash
from regard_lab.text.batches import TokenBatches, in_order, pad
from regard_lab.text.documents import read_labelled
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.config import CHOSEN, TrainingConfig, setting
from regard_lab.training.identity import hash_of
from regard_lab.training.loop import TrainingResult
from regard_lab.training.recipes.choosing import Amount, Choice
from regard_lab.training.recipes.masked_words import EncoderRunConfig
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.recipe import (
    FINE_TUNING_RATE,
    Recipe,
    Requested,
    Tell,
    Training,
    silent,
    tell_of_equal,
)

CLASSES_FILE = "classes.json"
LONGEST_FILE = "longest.json"  # the ids of a text that a classifier reads
NEW_RATE = 1e-3  # of a classifier with new weights
LEAST_TEXTS = 5  # of a label; with fewer on average there is a remark


class ClassifierTraining(Recipe):
    """Train an encoder to sort texts by their labels, from new weights or from a trained encoder.

    >>> ClassifierTraining.Config(data=("labels.tsv",)).learning_rate
    0.0003
    """

    COMMAND = "classifier"
    DATA = "a .tsv of label TAB text"

    @brief
    @dataclass(frozen=True, kw_only=True)
    class Config(EncoderRunConfig):  # ty: ignore[incompatible-attribute-override]
        """Everything that decides the training of a classifier.

        Args:
            data: lines of label TAB text.
            valid: validation lines in the same form; without them a part is split off by a hash of the text.
            from_run: start from the encoder of a run of masked-words.
            pooling: vector of a text: the mean over its positions, or that of the first one.
        """

        data: tuple[str, ...] = setting(metavar="FILE.tsv")
        valid: tuple[str, ...] = setting(EncoderRunConfig.valid, metavar="FILE.tsv")
        from_run: str | None = setting(None, option="--from", metavar="RUN")
        pooling: str = setting(EncoderConfig.pooling, metavar="mean|first")
        steps: int | None = setting(TrainingConfig.steps, least=1, shown=CHOSEN)
        warmup_steps: int = setting(100, least=0, shown=CHOSEN)
        learning_rate: float = setting(FINE_TUNING_RATE, shown=CHOSEN)

    OF_THE_RUN = (
        "tokeniser",
        "vocab_size",
        "mechanism",
        "positions",
        "dim",
        "heads",
        "kv_heads",
        "layers",
    )

    @classmethod
    def settings_from(cls, source: str) -> dict[str, Any]:
        return {}  # its sizes are those of the encoder itself, which need not be that of a run

    def choose(self, amount: Amount, requested: Requested) -> Choice:
        """As for other encoders; an encoder that comes from a run has its own sizes, and is changed with a low rate."""
        if self.config.from_run is None:
            return self.choose_stack(amount, requested, self.config.longest, learning_rate=NEW_RATE)
        fixed = {name: getattr(self.config, name) for name in self.OF_THE_RUN}
        requested = replace(requested, given={**fixed, **requested.given})
        return self.choose_stack(amount, requested, self.config.longest, **self.rate())

    def check_early(self, requested: Requested) -> None:
        if self.config.from_run is None:
            super().check_early(requested)
        else:
            load_with_tokeniser(self.config.from_run, TextEncoder.KIND)

    def prepare(self, begun: Path | None = None) -> Training:
        train, valid, test, classes = read_classes(self.config, self.tell)
        self.settle(Amount.of([pair.source for pair in train], "texts"))
        config = self.config
        if config.from_run is None:
            self.remark_on_scripts((pair.source for pair in train), config.tokeniser)
        model, tokeniser = first_classifier(begun, config, [pair.source for pair in train], classes)
        task = ClassificationTask(
            train,
            valid,
            classes,
            tokeniser,
            batch_tokens=config.batch_tokens,
            seed=config.seed,
            longest=config.longest,
            **share_of_work(),
        )
        if task.cut:
            self.tell(
                f"of {count_of(task.cut, 'texts', ',')} only the first {count_of(config.longest, 'ids')} are read"
            )

        def judge(folder: Path, result: TrainingResult) -> str | None:
            if result.valid_loss is None:
                return None
            judged, name = (test, "test") if test else (valid, "validation")
            right = task.accuracy(TextEncoder.load(folder), judged)
            return f"{right:.3f} of {len(judged):,} {name} texts right with the best model,"

        files = {
            CLASSES_FILE: json.dumps(classes) + "\n",
            LONGEST_FILE: f"{config.longest}\n",
            WORDS_FILE: Preparation.of(begun).words((pair.source for pair in train), tokeniser),
        }
        return self.ready(
            "a classifier",
            f", {count_of(len(classes), 'classes')}",
            model=model,
            task=task,
            tokeniser=tokeniser,
            test=tuple(test),
            judge=judge,
            learned=train,
            files=files,
        )


class Classifier(Described):
    """A trained classifier with its tokeniser and the labels in the order of its logits.

    Args:
        model: an encoder whose head is "classes".
        tokeniser: what it was trained with.
        classes: the labels.
        longest: how many ids of a text it reads.
        words: the words of its training texts, where they are stored.
    """

    def __init__(
        self,
        model: TextEncoder,
        tokeniser: Tokeniser,
        classes: Sequence[str],
        longest: int,
        words: SeenWords | None = None,
    ) -> None:
        self.model, self.tokeniser, self.classes, self.longest = (
            model,
            tokeniser,
            list(classes),
            longest,
        )
        self.words = words

    @classmethod
    def load(cls, run: str | Path) -> Self:
        """The best model of a training run, or a saved one.

        Raises:
            CheckpointError: missing, damaged, or no classifier.

        >>> Classifier.load("nowhere")
        Traceback (most recent call last):
        regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
        """
        saved, tokeniser = load_with_tokeniser(run, TextEncoder.KIND)
        model = TextEncoder.from_saved(saved, str(run))
        classes = json.loads(saved.extra_files.get(CLASSES_FILE, "[]"))
        if model.config.head != "classes" or len(classes) != model.config.classes:
            raise NotFoundError(
                f"{run} holds an encoder whose head is {model.config.head!r} and "
                f"{count_of(len(classes), 'labels')}, so it sorts "
                f"nothing; train one with: regard train classifier --from {run}"
            )
        longest = int(saved.extra_files.get(LONGEST_FILE, model.config.max_length))
        return cls(model, tokeniser, classes, longest, seen_words_of(saved, run))

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> list[list[float]]:
        """How probable each class is of each text, of which the first `longest` ids are read."""
        if not texts:
            return []
        device = next(self.model.parameters()).device
        ids = pad(
            [[BEGIN, *self.tokeniser.encode(text)[: self.longest - 2], END] for text in texts]
        )
        return self.model.eval()(ids.to(device)).double().softmax(-1).tolist()


def read_classes(
    config: ClassifierTraining.Config, tell: Tell = silent
) -> tuple[list[Pair], list[Pair], list[Pair], list[str]]:
    """Texts with labels to learn from, to validate on and to be scored on, and the labels."""
    if len(config.data) != 1 or len(config.valid) > 1:
        raise ArgumentError(
            "texts with labels are read from one .tsv, and validation texts from one other"
        )
    read = read_labelled(config.data[0])
    tell(read.report)
    if len(read.pairs) < LEAST_TEXTS * len(read.labels):
        tell(
            f"there are {len(read.labels):,} labels for {len(read.pairs):,} texts, so most labels cannot be learned: a "
            f"label needs some {LEAST_TEXTS} texts or more; each line is label TAB text, so look whether the columns "
            f"are swapped"
        )
    if config.valid:
        held_out = read_labelled(config.valid[0])
        tell(held_out.report)
        if strange := sorted(set(held_out.labels) - set(read.labels)):
            raise DataError(
                f"{config.valid[0]} has the label {strange[0]!r}, which {config.data[0]} never teaches"
            )
        tell_of_equal(
            [one.source for one in read.pairs], [one.source for one in held_out.pairs], tell
        )
        return list(read.pairs), list(held_out.pairs), [], list(read.labels)
    parts = split_by_hash(read.pairs, 0.1, 0.1)
    tell(
        f"split by a hash of the text: {len(parts.train):,} to learn from, {len(parts.valid):,} to validate, "
        f"{len(parts.test):,} to test"
    )
    return parts.train, parts.valid, parts.test, list(read.labels)


def first_classifier(
    begun: Path | None, config: ClassifierTraining.Config, texts: list[str], classes: list[str]
) -> tuple[TextEncoder, Tokeniser]:
    """The model before its first step, and its tokeniser: those of `from_run`, or new ones.

    A run that goes on has both itself, so what it came from may be gone.
    """
    goes_on = begun is not None and begun.is_dir() and read_checkpoints(begun) is not None
    source = begun if goes_on else config.from_run
    if source is None or config.from_run is None:
        tokeniser = config.new_tokeniser(texts, Preparation.of(begun))
        model_config = config.model_config(
            tokeniser.vocab_size, head="classes", classes=len(classes), pooling=config.pooling
        )
        return TextEncoder(model_config), tokeniser
    saved, tokeniser = load_with_tokeniser(source)
    trained = TextEncoder.from_saved(saved, str(source))
    changes = {
        "head": "classes",
        "classes": len(classes),
        "pooling": config.pooling,
        "dropout": config.dropout,
    }
    changes["gradient_checkpointing"] = config.gradient_checkpointing
    if config.attention:
        changes["pattern"] = config.attention
    if config.longest > trained.config.max_length:
        changes["max_length"] = config.longest
    return trained.changed(**changes), tokeniser


class LabelledTexts(NamedTuple):
    """ids: (batch, length); labels: (batch,), numbers of classes."""

    ids: torch.Tensor
    labels: torch.Tensor


class ClassificationTask(Described):
    """What `train` needs of texts with labels: which class is each of?

    Its losses are sums over texts; a text counts as one target.

    Args:
        train: texts (`source`) and their labels (`target`) to learn from; valid: to validate on.
        classes: the labels there are, in the order of the model's logits.
        tokeniser: of the texts; each is read as BEGIN, its ids, END.
        batch_tokens, seed, world, rank: as for `TokenBatches`.
        longest: the most ids in a text; longer ones are cut, and their number is in `cut`.

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
        batch_tokens: int = ClassifierTraining.Config.batch_tokens,
        seed: int = ClassifierTraining.Config.seed,
        world: int = 1,
        rank: int = 0,
        longest: int = ClassifierTraining.Config.longest,
    ) -> None:
        if not train:
            raise ArgumentError("no texts were given: there is nothing to learn from")
        self.classes = tuple(classes)
        self._tokeniser, self._longest = tokeniser, min(longest, batch_tokens)
        self.cut = 0
        self._train, self._valid = self.encode(train), self.encode(valid)
        self._batch_tokens = batch_tokens
        self.batches = TokenBatches(
            [len(ids) for ids, _ in self._train], batch_tokens, seed, world, rank
        )
        self._settings = {"batch_tokens": batch_tokens, "longest": self._longest, "order": seed}

    def encode(self, pairs: Sequence[Pair]) -> list[tuple[list[int], int]]:
        """Ids and number of the class of each text.

        Raises:
            ArgumentError: a label that is no class.
        """
        numbers = {label: number for number, label in enumerate(self.classes)}
        if strange := sorted({pair.target for pair in pairs} - numbers.keys()):
            raise ArgumentError(
                f"{strange[0]!r} is no class; there are {', '.join(self.classes[:20])}"
            )
        encoded = [(self._tokeniser.encode(pair.source), numbers[pair.target]) for pair in pairs]
        room = self._longest - 2
        self.cut += sum(len(ids) > room for ids, _ in encoded)
        return [([BEGIN, *ids[:room], END], number) for ids, number in encoded]

    def batch(self, index: int) -> LabelledTexts:
        """The micro-batch number `index`, a function of it and of the seed."""
        return labelled([self._train[at] for at in self.batches.at(index)])

    def loss(self, model: torch.nn.Module, batch: LabelledTexts) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the classes in nats, and the number of texts."""
        return F.cross_entropy(model(batch.ids).float(), batch.labels, reduction="sum"), len(
            batch.labels
        )

    def validation_batches(self) -> Sequence[LabelledTexts]:
        return self._ordered(self._valid)

    validation_loss = loss

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module, pairs: Sequence[Pair]) -> float:
        """Share of texts whose class has the largest logit, 0 to 1."""
        model.eval()
        batches = self._ordered(self.encode(pairs))
        device = next(model.parameters()).device
        hits = sum(
            int((model(ids.to(device)).argmax(-1).cpu() == labels).sum()) for ids, labels in batches
        )
        return hits / len(pairs)

    def fingerprint(self) -> dict[str, Any]:
        """What differs between these data, in this order, and others."""
        digest = hash_of(self._train, self._valid)
        return {
            "texts": len(self._train),
            "classes": list(self.classes),
            "hash": digest,
            **self._settings,
        }

    def _ordered(self, texts: Sequence[tuple[list[int], int]]) -> list[LabelledTexts]:
        groups = in_order([len(ids) for ids, _ in texts], self._batch_tokens)
        return [labelled([texts[at] for at in rows]) for rows in groups]


def labelled(texts: Sequence[tuple[list[int], int]]) -> LabelledTexts:
    """Ids and classes as tensors.

    >>> labelled([([2, 5, 3], 1), ([2, 3], 0)]).ids.tolist()
    [[2, 5, 3], [2, 3, 0]]
    """
    return LabelledTexts(
        pad([ids for ids, _ in texts]),
        torch.tensor([label for _, label in texts], dtype=torch.long),
    )
