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
from regard_lab.text import BEGIN, END, Pair, Tokeniser, split_by_hash
from regard_lab.text.batches import TokenBatches, in_order, pad, parts_of_rows
from regard_lab.text.documents import read_labelled
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.config import CHOSEN, TrainingConfig, setting
from regard_lab.training.identity import hash_of
from regard_lab.training.loop import TrainingResult
from regard_lab.training.recipes.choosing import Amount, ChosenSettings
from regard_lab.training.recipes.masked_words import EncoderRunConfig
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.reading import tell_of_equal
from regard_lab.training.recipes.recipe import FINE_TUNING_RATE, Recipe, Requested, Training
from regard_lab.training.recipes.run_folder import goes_on

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

    OF_THE_SOURCE = (
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

    def choose(self, amount: Amount, requested: Requested) -> ChosenSettings:
        """As for other encoders; an encoder that comes from a run has its own sizes, and is changed with a low rate."""
        if self.config.from_run is None:
            return self.choose_stack(amount, requested, self.config.longest, learning_rate=NEW_RATE)
        # What the source decides counts as given, so that nothing of it is chosen.
        decided = {name: getattr(self.config, name) for name in self.OF_THE_SOURCE}
        requested = replace(requested, given={**decided, **requested.given})
        return self.choose_stack(amount, requested, self.config.longest, **self.rate())

    def check_early(self, requested: Requested) -> None:
        if self.config.from_run is None:
            super().check_early(requested)
        else:
            load_with_tokeniser(self.config.from_run, TextEncoder.KIND)

    def prepare(self, begun: Path | None = None) -> Training:
        texts = read_classes(self.config, self.tell)
        sources = [pair.source for pair in texts.train]
        self.settle(Amount.of(sources, "texts"))
        config = self.config
        if config.from_run is None:
            self.remark_on_scripts(sources, config.tokeniser)
        model, tokeniser = first_classifier(begun, config, sources, texts.classes)

        task = ClassificationTask(
            texts.train,
            texts.valid,
            texts.classes,
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
            judged = texts.test or texts.valid
            name = "test" if texts.test else "validation"
            right = task.accuracy(TextEncoder.load(folder), judged)
            return f"{right:.3f} of {len(judged):,} {name} texts right with the best model,"

        files = {
            CLASSES_FILE: json.dumps(texts.classes) + "\n",
            LONGEST_FILE: f"{config.longest}\n",
            WORDS_FILE: Preparation.of(begun).words(sources, tokeniser),
        }
        return self.ready(
            "a classifier",
            f", {count_of(len(texts.classes), 'classes')}",
            model=model,
            task=task,
            tokeniser=tokeniser,
            test=tuple(texts.test),
            judge=judge,
            learned=texts.train,
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
        self.model = model
        self.tokeniser = tokeniser
        self.classes = list(classes)
        self.longest = longest
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
                f"{run} holds an encoder whose head is {model.config.head!r} and {count_of(len(classes), 'labels')}, "
                f"so it sorts nothing; train one with: regard train classifier --from {run}"
            )
        longest = int(saved.extra_files.get(LONGEST_FILE, model.config.max_length))
        return cls(model, tokeniser, classes, longest, seen_words_of(saved, run))

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> list[list[float]]:
        """How probable each class is of each text, of which the first `longest` ids are read."""
        if not texts:
            return []
        device = next(self.model.parameters()).device
        rows = [_row(self.tokeniser.encode(text), self.longest) for text in texts]
        logits = self.model.eval()(pad(rows).to(device))  # (texts, classes)
        return logits.double().softmax(-1).tolist()


def _row(ids: list[int], longest: int) -> list[int]:
    """A text as the encoder reads it: between BEGIN and END, `longest` ids at most."""
    return [BEGIN, *ids[: longest - 2], END]


class ClassTexts(NamedTuple):
    """Texts with labels to learn from (train), to validate on (valid) and to be scored on (test), and the labels."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    classes: list[str]


def read_classes(config: ClassifierTraining.Config, tell: Tell = silent) -> ClassTexts:
    """Read texts with labels; without a file to validate on, some are split off for that and for scores."""
    if len(config.data) != 1 or len(config.valid) > 1:
        raise ArgumentError(
            "texts with labels are read from one .tsv, and validation texts from one other"
        )
    read = read_labelled(config.data[0])
    tell(read.report)
    labels = list(read.labels)
    if len(read.pairs) < LEAST_TEXTS * len(labels):
        tell(
            f"there are {len(labels):,} labels for {len(read.pairs):,} texts, so most labels cannot be learned: a "
            f"label needs some {LEAST_TEXTS} texts or more; each line is label TAB text, so look whether the columns "
            f"are swapped"
        )
    if not config.valid:
        parts = split_by_hash(read.pairs, 0.1, 0.1)
        tell(
            f"split by a hash of the text: {len(parts.train):,} to learn from, {len(parts.valid):,} to validate, "
            f"{len(parts.test):,} to test"
        )
        return ClassTexts(parts.train, parts.valid, parts.test, labels)

    held_out = read_labelled(config.valid[0])
    tell(held_out.report)
    strange = sorted(set(held_out.labels) - set(labels))
    if strange:
        raise DataError(
            f"{config.valid[0]} has the label {strange[0]!r}, which {config.data[0]} never teaches"
        )
    learned = [pair.source for pair in read.pairs]
    validated = [pair.source for pair in held_out.pairs]
    tell_of_equal(learned, validated, tell)
    return ClassTexts(list(read.pairs), list(held_out.pairs), [], labels)


def first_classifier(
    begun: Path | None, config: ClassifierTraining.Config, texts: list[str], classes: list[str]
) -> tuple[TextEncoder, Tokeniser]:
    """The model before its first step, and its tokeniser: those of `from_run`, or new ones.

    A run that goes on has both itself, so what it came from may be gone.
    """
    head: dict[str, Any] = {
        "head": "classes",
        "classes": len(classes),
        "pooling": config.pooling,
    }
    if config.from_run is None:
        tokeniser = config.new_tokeniser(texts, Preparation.of(begun))
        return TextEncoder(config.model_config(tokeniser.vocab_size, **head)), tokeniser

    source = config.from_run
    if begun is not None and goes_on(begun):
        source = str(begun)
    saved, tokeniser = load_with_tokeniser(source)
    trained = TextEncoder.from_saved(saved, source)
    changes = {
        **head,
        "dropout": config.dropout,
        "gradient_checkpointing": config.gradient_checkpointing,
    }
    if config.attention:
        changes["pattern"] = config.attention
    if config.longest > trained.config.max_length:
        changes["max_length"] = config.longest
    return trained.changed(**changes), tokeniser


class LabelledText(NamedTuple):
    """The ids of a text, BEGIN and END included, and the number of its class."""

    ids: list[int]
    label: int


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
        self._tokeniser = tokeniser
        self._longest = min(longest, batch_tokens)
        self.cut = 0
        self._train = self.encode(train)
        self._valid = self.encode(valid)
        self._batch_tokens = batch_tokens
        lengths = [len(text.ids) for text in self._train]
        self.batches = TokenBatches(lengths, batch_tokens, seed, world, rank)
        self._settings = {"batch_tokens": batch_tokens, "longest": self._longest, "order": seed}

    def encode(self, pairs: Sequence[Pair]) -> list[LabelledText]:
        """Ids and number of the class of each text.

        Raises:
            ArgumentError: a label that is no class.
        """
        numbers = {label: number for number, label in enumerate(self.classes)}
        strange = sorted({pair.target for pair in pairs} - numbers.keys())
        if strange:
            raise ArgumentError(
                f"{strange[0]!r} is no class; there are {', '.join(self.classes[:20])}"
            )
        encoded = []
        for pair in pairs:
            ids = self._tokeniser.encode(pair.source)
            self.cut += len(ids) > self._longest - 2
            encoded.append(LabelledText(_row(ids, self._longest), numbers[pair.target]))
        return encoded

    def batch(self, index: int) -> LabelledTexts:
        """The micro-batch number `index`, a function of it and of the seed."""
        return labelled([self._train[row] for row in self.batches.at(index)])

    def parts(self, batch: LabelledTexts, count: int) -> list[LabelledTexts]:
        """The batch divided by its rows."""
        return [LabelledTexts(*part) for part in parts_of_rows(count, *batch)]

    def loss(self, model: torch.nn.Module, batch: LabelledTexts) -> tuple[torch.Tensor, int]:
        """Sum of the cross entropies of the classes in nats, and the number of texts."""
        logits = model(batch.ids).float()  # (batch, classes)
        return F.cross_entropy(logits, batch.labels, reduction="sum"), len(batch.labels)

    def validation_batches(self) -> Sequence[LabelledTexts]:
        return self._ordered(self._valid)

    validation_loss = loss

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module, pairs: Sequence[Pair]) -> float:
        """Share of texts whose class has the largest logit, 0 to 1."""
        model.eval()
        device = next(model.parameters()).device
        right = 0
        for batch in self._ordered(self.encode(pairs)):
            best = model(batch.ids.to(device)).argmax(-1).cpu()
            right += int((best == batch.labels).sum())
        return right / len(pairs)

    def fingerprint(self) -> dict[str, Any]:
        """What differs between these data, in this order, and others."""
        # Plain tuples, whose text runs of earlier versions hashed.
        digest = hash_of(
            [tuple(text) for text in self._train], [tuple(text) for text in self._valid]
        )
        return {
            "texts": len(self._train),
            "classes": list(self.classes),
            "hash": digest,
            **self._settings,
        }

    def _ordered(self, texts: Sequence[LabelledText]) -> list[LabelledTexts]:
        lengths = [len(text.ids) for text in texts]
        batches = []
        for indices in in_order(lengths, self._batch_tokens):
            batches.append(labelled([texts[index] for index in indices]))
        return batches


def labelled(texts: Sequence[LabelledText]) -> LabelledTexts:
    """Ids and classes as tensors.

    >>> labelled([LabelledText([2, 5, 3], 1), LabelledText([2, 3], 0)]).ids.tolist()
    [[2, 5, 3], [2, 3, 0]]
    """
    labels = [text.label for text in texts]
    return LabelledTexts(pad([text.ids for text in texts]), torch.tensor(labels, dtype=torch.long))
