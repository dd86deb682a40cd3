"""`regard train masked-words` and `regard train classifier`: texts, a tokeniser, a TextEncoder, and the loop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import say
from regard.cli.run_settings import RunSettings, StackSettings, decide_settings
from regard.cli.runs import CLASSES_FILE, LONGEST_FILE
from regard.cli.samples import hidden_words, labels
from regard.cli.training_runs import Training, conclude, describe_model, describe_steps, share_of_work
from regard.cli.training_texts import pronoun_sentences, read_parts
from regard.decoding.loading import load_with_tokeniser
from regard.errors import ArgumentError, DataError
from regard.models.encoder import EncoderConfig, TextEncoder
from regard.models.storage import read_checkpoints
from regard.text import Pair, Tokeniser, split_by_hash
from regard.text.documents import read_labelled, read_texts
from regard.text.translation_data import PRONOUNS
from regard.training import check_run_folder
from regard.training.encoder import ClassificationTask, MaskedWordTask

HELD_OUT = 0.05
MOST_HELD_OUT = 200_000  # characters


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(StackSettings):
    """Everything that decides the training of an encoder."""

    longest: int = 256

    def new_tokeniser(self, texts: list[str]) -> Tokeniser:
        return Tokeniser.train(texts, self.vocab_size, self.tokeniser)

    def model_config(self, vocab_size: int, **head: Any) -> EncoderConfig:
        return EncoderConfig(vocab_size=vocab_size, **head, **self.model_settings())


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings(EncoderSettings):
    """Everything that decides the training of a classifier."""

    from_run: str | None = None
    pooling: str = "mean"
    steps: int = 1_000
    warmup_steps: int = 100
    learning_rate: float = 3e-4


OF_THE_RUN = (
    "tokeniser", "vocab_size", "mechanism", "positions", "dim", "heads", "kv_heads", "layers",
)  # fmt: skip


def run_masked_words_training(
    out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool, tensorboard: bool = False, samples: bool = False
) -> None:
    """The command: say what is read, train, say what came of it."""
    data = (
        f"a file of text, a text a line, a .jsonl of objects with a \"text\", or '{PRONOUNS}' for the embedded corpus"
    )
    check_run_folder(out)
    settings = decide_settings(EncoderSettings, out, given, resume, data)
    train, valid = read_lines_of_text(settings)
    torch.manual_seed(settings.seed)
    tokeniser = settings.new_tokeniser(train)
    model = TextEncoder(settings.model_config(tokeniser.vocab_size))
    task = MaskedWordTask(
        train, valid, tokeniser,
        batch_tokens=settings.batch_tokens, seed=settings.seed, longest=settings.longest, **share_of_work(),
    )  # fmt: skip
    say(f"{describe_model('an encoder', model, tokeniser)}; {describe_steps(settings, task.batches.steps_per_epoch)}")
    training = Training(
        out=out, settings=settings, model=model, task=task, tokeniser=tokeniser,
        samples=hidden_words(tokeniser, task) if samples and valid else None,
    )  # fmt: skip
    result = training.go(resume=resume, cpu=cpu, tensorboard=tensorboard)
    loss = result.valid_loss
    found = None if loss is None else f"best validation {loss:.4f} nats a word (perplexity {math.exp(loss):.1f})"
    conclude("masked-words", out, result, found)


def run_classifier_training(
    out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool, tensorboard: bool = False, samples: bool = False
) -> None:
    """The command: say what is read, train, say what came of it."""
    check_run_folder(out)
    settings = decide_settings(ClassifierSettings, out, given, resume, "a .tsv of label TAB text")
    if settings.from_run is not None and (named := [name for name in OF_THE_RUN if given.get(name) is not None]):
        raise ArgumentError(
            f"--from {settings.from_run} decides {', '.join(named)}; leave that out, or leave out --from"
        )
    train, valid, test, classes = read_classes(settings)
    torch.manual_seed(settings.seed)
    model, tokeniser = first_classifier(out if resume else None, settings, [pair.source for pair in train], classes)
    task = ClassificationTask(
        train, valid, classes, tokeniser,
        batch_tokens=settings.batch_tokens, seed=settings.seed, longest=settings.longest, **share_of_work(),
    )  # fmt: skip
    if task.cut:
        say(f"of {task.cut:,} texts only the first {settings.longest} ids are read")
    steps = describe_steps(settings, task.batches.steps_per_epoch)
    say(f"{describe_model('a classifier', model, tokeniser)}, {len(classes)} classes; {steps}")
    training = Training(
        out=out, settings=settings, model=model, task=task, tokeniser=tokeniser, test=tuple(test),
        files={CLASSES_FILE: json.dumps(classes) + "\n", LONGEST_FILE: f"{settings.longest}\n"},
        samples=labels(tokeniser, valid, classes, settings.longest) if samples else None,
    )  # fmt: skip
    result = training.go(resume=resume, cpu=cpu, tensorboard=tensorboard)
    found = None
    if result.valid_loss is not None:
        best = TextEncoder.load(out)
        judged, name = (test, "test") if test else (valid, "validation")
        right = task.accuracy(best, judged)
        found = f"{right:.3f} of {len(judged):,} {name} texts right with the best model,"
    conclude("classifier", out, result, found)


def read_lines_of_text(settings: RunSettings) -> tuple[list[str], list[str]]:
    """Texts to learn from and to validate on; without files to validate on, the last of the others."""
    if settings.data == (PRONOUNS,):
        return pronoun_sentences(settings)
    return read_parts(settings, read_texts, HELD_OUT, MOST_HELD_OUT)


def read_classes(settings: RunSettings) -> tuple[list[Pair], list[Pair], list[Pair], list[str]]:
    """Texts with labels to learn from, to validate on and to be judged by, and the labels there are.

    Raises:
        DataError: files that cannot be read, or a validation label that is never learned from.
    """
    if len(settings.data) != 1 or len(settings.valid) > 1:
        raise ArgumentError("texts with labels are read from one .tsv, and validation texts from one other")
    read = read_labelled(settings.data[0])
    say(read.report)
    if settings.valid:
        held_out = read_labelled(settings.valid[0])
        say(held_out.report)
        if strange := sorted(set(held_out.labels) - set(read.labels)):
            raise DataError(f"{settings.valid[0]} has the label {strange[0]!r}, which {settings.data[0]} never teaches")
        return list(read.pairs), list(held_out.pairs), [], list(read.labels)
    parts = split_by_hash(read.pairs, 0.1, 0.1)
    say(f"split by a hash of the text: {len(parts.train):,} to learn from, {len(parts.valid):,} to validate, "
        f"{len(parts.test):,} to test")  # fmt: skip
    return parts.train, parts.valid, parts.test, list(read.labels)


def first_classifier(
    run: Path | None, settings: ClassifierSettings, texts: list[str], classes: list[str]
) -> tuple[TextEncoder, Tokeniser]:
    """The model as training finds it, and its tokeniser: those of `--from`, or new ones.

    A run that goes on has both itself, so that what it came from need not be there any more.
    """
    begun = run is not None and run.is_dir() and read_checkpoints(run) is not None
    source = run if begun else settings.from_run
    if source is None or (begun and settings.from_run is None):
        tokeniser = settings.new_tokeniser(texts)
        config = settings.model_config(
            tokeniser.vocab_size, head="classes", classes=len(classes), pooling=settings.pooling
        )
        return TextEncoder(config), tokeniser
    saved, tokeniser = load_with_tokeniser(source)
    trained = TextEncoder.from_saved(saved, str(source))
    changes = {"head": "classes", "classes": len(classes), "pooling": settings.pooling, "dropout": settings.dropout}
    changes["gradient_checkpointing"] = settings.gradient_checkpointing
    if settings.attention:
        changes["pattern"] = settings.attention
    if settings.longest > trained.config.max_length:
        changes["max_length"] = settings.longest
    return trained.changed(**changes), tokeniser
