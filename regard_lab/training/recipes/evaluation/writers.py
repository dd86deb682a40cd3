"""How well a language model writes: its loss on texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.decoding.lines import SharedWork
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models import LanguageModel
from regard_lab.text.documents import read_documents
from regard_lab.text.remarks import Tell, silent
from regard_lab.training.recipes.evaluation.counting import (
    Counting,
    telling_what_was_done,
    uncounted,
)
from regard_lab.training.recipes.evaluation.lines import (
    learning_lines,
    named_lines,
    perplexity_of,
    training_lines,
)
from regard_lab.training.recipes.language import LanguageModelTraining, LanguageTask, lines_of
from regard_lab.training.recipes.run_folder import LearnedLoss, count_trained, read_settings

BATCH_IDS = 2048  # at least one block


@dataclass(frozen=True)
class TextScores:
    """The loss of a language model on a text, in nats an id; `trained` counts those of its lines that it learned from.

    It is None where the run does not store them. `learned` is as for `RunScores`.

    >>> scores = TextScores("new.txt", loss=2.0, ids=300, characters=1000, block=64)
    >>> round(scores.perplexity, 3), round(scores.bits_per_character, 3)
    (7.389, 0.866)
    """

    name: str
    loss: float
    ids: int
    characters: int
    block: int
    line_count: int = 0
    trained: int | None = None
    learned: LearnedLoss | None = None

    @property
    def perplexity(self) -> float:
        """`exp(loss)`, per id; that of a model that has learned nothing is the size of its vocabulary."""
        return perplexity_of(self.loss)

    @property
    def bits_per_character(self) -> float:
        """`loss · ids / (characters · ln 2)`, which can be compared across tokenisers."""
        return self.loss * self.ids / (self.characters * math.log(2))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name,
            "trained_on": self.trained,
            "hardly_learned": None if self.learned is None else self.learned.hardly,
            "loss": self.loss,
            "ids": self.ids,
            "characters": self.characters,
            "block": self.block,
            "line_count": self.line_count,
            "perplexity": self.perplexity,
            "bits_per_character": self.bits_per_character,
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        characters = count_of(self.characters, "characters", ",")
        ids = count_of(self.ids, "ids", ",")
        block = count_of(self.block, "ids", ",")
        values = {
            "loss": f"{self.loss:.4f} nats per id",
            "perplexity": f"{self.perplexity:.3f} per id",
            "bits": f"{self.bits_per_character:.3f} per character",
        }
        return [
            f"{characters} of {self.name}, {ids} in blocks of up to {block}",
            *training_lines(self.trained, self.line_count, "lines", "a new text"),
            *learning_lines(self.learned),
            *named_lines(values),
        ]


class BatchLoss(NamedTuple):
    """The number of a batch, the sum of its cross entropies in nats, and how many ids they are of."""

    number: int
    total: float
    ids: int


@torch.inference_mode()
def evaluate_text(
    run: str | Path,
    texts: Sequence[str | Path],
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
    share: SharedWork | None = None,
) -> TextScores:
    """The loss of a language model on texts, cut into blocks as those that it was validated on.

        loss = -Σ log p(id | BEGIN, the ids before it in its block) / ids

    The END of each document counts among the ids.

    Args:
        texts: UTF-8 files, or .jsonl files with a "text" in each line.
        share: divides the batches among processes, each of which returns the same scores; see
            `regard_lab.decoding.lines.sharing`.

    Raises:
        ArgumentError: no texts.
        CheckpointError: no language model.
        DataError: files that cannot be read.

    Source: perplexity as in Jurafsky and Martin, Speech and Language Processing, section 3.3.
    """
    if not texts:
        raise ArgumentError(
            f"{run} holds a language model, which keeps no test split; name a text: regard evaluate {run} TEXT.txt"
        )
    saved, tokeniser = load_with_tokeniser(run, LanguageModel.KIND)
    model = LanguageModel.from_saved(saved, str(run)).eval()
    settings = read_settings(Path(run)) or {}
    read = read_documents(*texts)
    tell(read.report())
    block = int(settings.get("block", LanguageModelTraining.Config.block))
    if model.config.positions == "learned":
        block = min(block, model.config.max_length)
    # A task has documents to learn from; one of them is enough where nothing is learned.
    task = LanguageTask(
        read.texts[:1], read.texts, tokeniser, block=block, batch_tokens=max(block, BATCH_IDS)
    )
    batches = task.validation_batches()

    losses: list[BatchLoss] = []
    interruptible = telling_what_was_done("batches", len(batches), losses)
    with interruptible, counting(len(batches)) as progress:
        for number, batch in enumerate(batches):
            if share is None or number % share.count == share.rank:
                loss, ids = task.loss(model, batch)
                losses.append(BatchLoss(number, float(loss), ids))
            progress(1)
    if share is not None:
        # Summed in the order of one process, so that their number changes no bit.
        losses = sorted(share.gathered(losses))

    ids = sum(loss.ids for loss in losses)
    lines = lines_of(read.texts)
    return TextScores(
        name=" + ".join(map(str, texts)),
        loss=sum(loss.total for loss in losses) / ids,
        ids=ids,
        characters=read.characters,
        block=block,
        line_count=len(lines),
        trained=count_trained(Path(run), lines),
        learned=LearnedLoss.of_run(Path(run)),
    )
