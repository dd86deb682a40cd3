"""How well an encoder finds words that are hidden in texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models.encoder import TextEncoder
from regard_lab.text.documents import read_texts
from regard_lab.text.remarks import Tell, silent
from regard_lab.training.recipes.evaluation.counting import (
    Counting,
    telling_what_was_done,
    uncounted,
)
from regard_lab.training.recipes.evaluation.lines import (
    exact_matches,
    named_lines,
    perplexity_of,
    rate,
)
from regard_lab.training.recipes.masked_words import MaskedWordsTraining, MaskedWordTask


@dataclass(frozen=True)
class HiddenWordScores:
    """How well an encoder finds hidden words of texts: `loss` in nats a word, shares of the words that are right."""

    name: str
    words: int
    loss: float
    accuracy: float
    baseline: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name,
            "words": self.words,
            "loss": self.loss,
            "perplexity": perplexity_of(self.loss),
            "accuracy": self.accuracy,
            "majority_baseline": self.baseline,
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        right = exact_matches(self.accuracy, self.words)
        values = {
            "loss": f"{self.loss:.4f} nats per word (perplexity {perplexity_of(self.loss):.1f})",
            "accuracy": f"{right}; the commonest word alone would get {rate(self.baseline)}",
        }
        head = f"{count_of(self.words, 'hidden words', ',')} of {self.name}"
        return [head, *named_lines(values)]


@torch.inference_mode()
def evaluate_encoder(
    run: str | Path,
    texts: Sequence[str | Path],
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
) -> HiddenWordScores:
    """Hide words of texts, a text a line, as validation hides them, and find them again."""
    saved, tokeniser = load_with_tokeniser(run, TextEncoder.KIND)
    model = TextEncoder.from_saved(saved, str(run)).eval()
    if model.config.head != "words":
        raise NotFoundError(
            f"{run} holds an encoder whose head is {model.config.head!r}; it finds no hidden words"
        )
    if not texts:
        raise ArgumentError(
            f"{run} holds an encoder, which keeps no test split; name a text: regard evaluate {run} TEXT.txt"
        )
    read = read_texts(*texts)
    tell(read.report())
    longest = min(MaskedWordsTraining.Config.longest, model.config.max_length)
    # A task has texts to learn from; one of them is enough where nothing is learned.
    task = MaskedWordTask(read.texts[:1], read.texts, tokeniser, longest=longest)
    batches = task.validation_batches()

    losses: list[float] = []  # the sum of each batch
    right = 0
    words = Counter[int]()
    interruptible = telling_what_was_done("batches", len(batches), losses)
    with interruptible, counting(len(batches)) as progress:
        for batch in batches:
            logits = model(batch.ids, batch.places).double()
            losses.append(float(F.cross_entropy(logits, batch.words, reduction="sum")))
            right += int((logits.argmax(-1) == batch.words).sum())
            words.update(batch.words.tolist())
            progress(1)

    count = words.total()
    return HiddenWordScores(
        name=" + ".join(map(str, texts)),
        words=count,
        loss=sum(losses) / count,
        accuracy=right / count,
        baseline=max(words.values()) / count,
    )
