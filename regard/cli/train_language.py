"""`regard train language-model`: running text, a tokeniser, a LanguageModel, and the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import say
from regard.cli.training_runs import (
    RunSettings,
    Training,
    conclude,
    decide_settings,
    describe_model,
    share_of_work,
)
from regard.errors import ArgumentError
from regard.models import LanguageConfig, LanguageModel
from regard.text.documents import read_documents, split_tail
from regard.text.pronouns import make_split
from regard.text.translation_data import PRONOUN_COUNTS, PRONOUNS
from regard.training.language import LanguageTask

COMMAND = "language-model"
HELD_OUT = 0.05
MOST_HELD_OUT = 1_000_000  # characters


@dataclass(frozen=True, kw_only=True)
class LanguageSettings(RunSettings):
    """Everything that decides the training of a language model."""

    block: int = 256
    norm: str = "rms"
    activation: str = "swiglu"

    def model_config(self, vocab_size: int) -> LanguageConfig:
        return LanguageConfig(
            vocab_size=vocab_size, norm=self.norm, activation=self.activation, **self.model_settings()
        )


def run_language_training(out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool) -> None:
    """The command: say what is read, train, say what came of it."""
    data = f"a file of text, a .jsonl of objects with a \"text\", or '{PRONOUNS}' for the embedded corpus"
    settings = decide_settings(LanguageSettings, out, given, resume, data)
    train, valid = read_running_text(settings)
    torch.manual_seed(settings.seed)
    tokeniser = settings.learn_tokeniser(train, verbatim=True)
    model = LanguageModel(settings.model_config(tokeniser.vocab_size))
    task = LanguageTask(
        train, valid, tokeniser,
        block=settings.block, batch_tokens=settings.batch_tokens, seed=settings.seed, **share_of_work(),
    )  # fmt: skip
    if settings.positions == "learned" and settings.block > settings.max_length:
        raise ArgumentError(
            f"block is {settings.block}, but positions are learned up to max_length {settings.max_length}"
        )
    say(f"{describe_model('a language model', model, tokeniser)}; {settings.steps:,} steps, "
        f"{task.batches.steps_per_epoch:,} an epoch")  # fmt: skip
    training = Training(out=out, settings=settings, model=model, task=task, tokeniser=tokeniser)
    result = training.go(resume=resume, cpu=cpu)
    found = None
    if result.valid_loss is not None:
        bits = task.bits_per_character(result.valid_loss)
        found = f"best validation {result.valid_loss:.4f} nats an id, {bits:.3f} bits a character,"
    conclude(COMMAND, out, result, found)


def read_running_text(settings: RunSettings) -> tuple[list[str], list[str]]:
    """Documents to learn from and to validate on; without files to validate on, the tails of the others."""
    if settings.data == (PRONOUNS,):
        train, valid = (
            "".join(f"{sentence.source}\n" for sentence in make_split(split, PRONOUN_COUNTS[split], settings.seed))
            for split in ("train", "valid")
        )
        say(f"{len(train):,} characters of the embedded corpus")
        return [train], [valid]
    read = read_documents(*settings.data)
    say(read.report())
    if settings.valid:
        held_out = read_documents(*settings.valid)
        say(held_out.report())
        return list(read.texts), list(held_out.texts)
    train, valid = split_tail(read.texts, HELD_OUT, MOST_HELD_OUT)
    say(f"{sum(map(len, train)):,} characters to learn from; the last {sum(map(len, valid)):,} validate")
    return train, valid
