"""The quality of a language model: its loss on a text that it has not learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.decoding import SharedWork
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models import LanguageModel
from regard_lab.text.documents import read_documents
from regard_lab.training.recipes.language import LanguageModelTraining, LanguageTask
from regard_lab.training.recipes.recipe import Tell, silent
from regard_lab.training.recipes.run_folder import read_settings


@dataclass(frozen=True)
class TextScores:
    """The loss of a language model on a text, in nats an id; `learned_from` are those of the files it was trained on.

    >>> scores = TextScores("new.txt", loss=2.0, ids=300, characters=1000, block=64)
    >>> round(scores.perplexity, 3), round(scores.bits_per_character, 3)
    (7.389, 0.866)
    """

    name: str
    loss: float
    ids: int
    characters: int
    block: int
    learned_from: tuple[str, ...] = ()

    @property
    def perplexity(self) -> float:
        """`exp(loss)`, per id; that of a model that knows nothing is the size of its vocabulary."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_character(self) -> float:
        """`loss · ids / (characters · ln 2)`, which can be compared across tokenisers."""
        return self.loss * self.ids / (self.characters * math.log(2))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name, **{key: value for key, value in asdict(self).items() if key != "name"},
            "perplexity": self.perplexity, "bits_per_character": self.bits_per_character,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        values = {
            "loss": f"{self.loss:.4f} nats per id",
            "perplexity": f"{self.perplexity:.3f} per id",
            "bits": f"{self.bits_per_character:.3f} per character",
        }
        learned = f"  {' + '.join(self.learned_from)}: trained on, so the figures are better than those of a new text"
        return [
            f"{count_of(self.characters, 'characters', ',')} of {self.name}, {count_of(self.ids, 'ids', ',')} in "
            f"blocks of up to {count_of(self.block, 'ids', ',')}",
            *([learned] if self.learned_from else []),
            *(f"  {key:<12} {value}" for key, value in values.items()),
        ]


@torch.inference_mode()
def evaluate_text(
    run: str | Path, texts: Sequence[str | Path], *, tell: Tell = silent, share: SharedWork | None = None
) -> TextScores:
    """The loss of a language model on texts, cut into blocks as those that it was validated on.

        loss = -Σ log p(id | BEGIN, the ids before it in its block) / ids

    The END of each document counts among the ids.

    Args:
        run: the folder of a training run, or of a saved model.
        texts: UTF-8 files, or .jsonl files with a "text" in each line.
        tell: is handed remarks.
        share: divides the batches among processes, see `regard_lab.decoding.sharing`; each returns the same scores.

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
    task = LanguageTask(read.texts[:1], read.texts, tokeniser, block=block, batch_tokens=max(block, 2048))
    rank, processes = (0, 1) if share is None else (share.rank, share.count)
    own = []
    for number, batch in enumerate(task.validation_batches()):
        if number % processes == rank:
            loss, count = task.loss(model, batch)
            own.append((number, float(loss), count))
    found = own if share is None else sorted(share.gathered(own))  # summed in the order of one process
    total, ids = sum(loss for _, loss, _ in found), sum(count for _, _, count in found)
    learned = {Path(path).resolve() for path in settings.get("data", ())}
    return TextScores(
        " + ".join(map(str, texts)), total / ids, ids, read.characters, block,
        tuple(str(path) for path in texts if Path(path).resolve() in learned),
    )  # fmt: skip
