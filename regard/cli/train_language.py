"""`regard train language-model`: running text, a tokeniser, a LanguageModel, and the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.cli.console import say
from regard.cli.run_settings import RunSettings, StackSettings, decide_settings
from regard.cli.samples import writings
from regard.cli.training_runs import Training, conclude, describe_model, describe_steps, share_of_work
from regard.cli.training_texts import pronoun_sentences, read_parts
from regard.errors import ArgumentError
from regard.models import LanguageConfig, LanguageModel
from regard.text import Tokeniser
from regard.text.documents import read_documents
from regard.text.translation_data import PRONOUNS
from regard.training import check_run_folder
from regard.training.language import LanguageTask

COMMAND = "language-model"
HELD_OUT = 0.05
MOST_HELD_OUT = 1_000_000  # characters


@dataclass(frozen=True, kw_only=True)
class LanguageSettings(StackSettings):
    """Everything that decides the training of a language model."""

    block: int = 256
    norm: str = "rms"
    activation: str = "swiglu"

    def model_config(self, vocab_size: int) -> LanguageConfig:
        return LanguageConfig(
            vocab_size=vocab_size, norm=self.norm, activation=self.activation, **self.model_settings()
        )


def run_language_training(
    out: Path, given: Mapping[str, Any], *, resume: bool, cpu: bool, tensorboard: bool = False, samples: bool = False
) -> None:
    """The command: say what is read, train, say what came of it."""
    data = f"a file of text, a .jsonl of objects with a \"text\", or '{PRONOUNS}' for the embedded corpus"
    check_run_folder(out)
    settings = decide_settings(LanguageSettings, out, given, resume, data)
    train, valid = read_running_text(settings)
    torch.manual_seed(settings.seed)
    tokeniser = Tokeniser.train(train, settings.vocab_size, settings.tokeniser, verbatim=True)
    model = LanguageModel(settings.model_config(tokeniser.vocab_size))
    task = LanguageTask(
        train, valid, tokeniser,
        block=settings.block, batch_tokens=settings.batch_tokens, seed=settings.seed, **share_of_work(),
    )  # fmt: skip
    if settings.positions == "learned" and settings.block > settings.max_length:
        raise ArgumentError(
            f"block is {settings.block}, but positions are learned up to max_length {settings.max_length}"
        )
    steps = describe_steps(settings, task.batches.steps_per_epoch)
    say(f"{describe_model('a language model', model, tokeniser)}; {steps}")
    training = Training(
        out=out, settings=settings, model=model, task=task, tokeniser=tokeniser,
        samples=writings(tokeniser, valid) if samples else None,
    )  # fmt: skip
    result = training.go(resume=resume, cpu=cpu, tensorboard=tensorboard)
    found = None
    if result.valid_loss is not None:
        bits = task.bits_per_character(result.valid_loss)
        found = f"best validation {result.valid_loss:.4f} nats an id, {bits:.3f} bits a character,"
    conclude(COMMAND, out, result, found)


def read_running_text(settings: RunSettings) -> tuple[list[str], list[str]]:
    """Documents to learn from and to validate on; without files to validate on, the tails of the others."""
    if settings.data == (PRONOUNS,):
        train, valid = ("".join(f"{source}\n" for source in part) for part in pronoun_sentences(settings))
        return [train], [valid]
    return read_parts(settings, read_documents, HELD_OUT, MOST_HELD_OUT)
