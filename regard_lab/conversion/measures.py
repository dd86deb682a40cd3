"""Measures of two models, one converted from the other: predictions on a text, speed of decoding, bytes of caches."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.packages import needed
from regard_lab.models import LanguageModel
from regard_lab.text import PAD
from regard_lab.training.engine import Batch, Task

# Predictions


class Watched:
    """Calls a model and keeps what it was given and what it returned."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.inputs: tuple[Any, ...] = ()
        self.logits = torch.zeros(())

    def __call__(self, *inputs: Any) -> torch.Tensor:
        self.inputs = inputs
        self.logits = self.model(*inputs)
        return self.logits


def counted(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The logits of the ids that a task counts: (ids, vocab_size)."""
    following = getattr(batch, "next", None)
    return logits if following is None else logits[following != PAD]


def divergence(expected: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL divergence of the predictions from the expected ones in nats, for each row of logits (ids, vocab_size)."""
    first, second = (each.float().log_softmax(-1) for each in (expected, logits))
    return (first.exp() * (first - second)).sum(-1)


@dataclass(frozen=True)
class Agreement:
    """How far the predictions of a converted model are from the original's on a text.

    Args:
        ids: number of ids.
        loss: mean cross entropies of the original and of the converted model, in nats per id.
        divergence: mean KL divergence from the original's predictions, in nats per id.
        agreement: share of ids where both find the same id likeliest.

    >>> Agreement(10, (0.0, 1.0), 0.5, 0.9).to_dict()["perplexity"][0]
    1.0
    """

    ids: int
    loss: tuple[float, float]
    divergence: float
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with the perplexities."""
        return {**asdict(self), "perplexity": [math.exp(min(loss, 700.0)) for loss in self.loss]}


def agreement(batches: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> Agreement:
    """Compare predictions: logits of the original and of the converted model (ids, vocab_size), and the targets."""
    loss, difference, same, ids = [0.0, 0.0], 0.0, 0, 0
    for expected, logits, targets in batches:
        for number, each in enumerate((expected, logits)):
            loss[number] += float(nn.functional.cross_entropy(each.float(), targets, reduction="sum"))
        difference += float(divergence(expected, logits).sum())
        same += int((expected.argmax(-1) == logits.argmax(-1)).sum())
        ids += len(targets)
    count = max(1, ids)
    return Agreement(ids, (loss[0] / count, loss[1] / count), difference / count, same / count)


@torch.no_grad()
def agreement_on_task(model: nn.Module, other: nn.Module, task: Task) -> Agreement:
    """The agreement of two models of regard on what a task holds out."""

    def batches() -> Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for batch in task.validation_batches():
            watched = [Watched(each.eval()) for each in (model, other)]
            for each in watched:
                task.validation_loss(each, batch)  # ty: ignore[invalid-argument-type]
            following = getattr(batch, "next", None)
            targets = batch.words if following is None else following[following != PAD]
            yield counted(watched[0].logits, batch), counted(watched[1].logits, batch), targets

    return agreement(batches())


# Decoding

CONTEXTS = (128, 512, 2048)
STEPS, ROUNDS = 4, 5

Decoder = Callable[[int], tuple[Callable[[], object], int]]
"""Reads a context of so many ids; returns a function that decodes one more id, and the bytes of the cache."""


class Speed(NamedTuple):
    """CPU milliseconds per decoded id, and cache bytes per id, of the original and the converted model."""

    context: int
    milliseconds: tuple[float, float]
    cache_bytes: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How many times faster the converted model decodes."""
        return self.milliseconds[0] / self.milliseconds[1]


@torch.no_grad()
def decoding_speed(before: Decoder, after: Decoder, contexts: Sequence[int] = CONTEXTS) -> list[Speed]:
    """Both models in turns, by CPU time: other programs on the machine affect both alike."""
    found = []
    for context in contexts:
        (first, first_bytes), (second, second_bytes) = before(context), after(context)
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for step, times in zip((first, second), samples, strict=True):
                start = time.process_time()
                for _ in range(STEPS):
                    step()
                times.append((time.process_time() - start) / STEPS * 1000)
        medians = statistics.median(samples[0]), statistics.median(samples[1])
        found.append(Speed(context, medians, (first_bytes / context, second_bytes / context)))
    return found


def decoder_of_ours(model: LanguageModel) -> Decoder:
    """Decoding with a LanguageModel of regard."""
    one = torch.full((1,), 4)

    def begin(context: int) -> tuple[Callable[[], object], int]:
        state: Any = model.eval().start(torch.full((1, context), 4))
        return lambda: model.step(one, state), state.nbytes

    return begin


def decoder_of_transformers(model: Any) -> Decoder:
    """Decoding with a model of transformers."""
    one = torch.full((1, 1), 4)

    def begin(context: int) -> tuple[Callable[[], object], int]:
        output = model(torch.full((1, context), 4), use_cache=True)
        # Versions of transformers name it past_key_values or cache, in outputs as in calls.
        name, cache = next((name, one) for name, one in output.items() if hasattr(one, "get_seq_length"))
        tensors = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        held = sum(x.numel() * x.element_size() for x in tensors)
        return lambda: model(one, **{name: cache}, use_cache=True), held

    return begin


def contexts_of(longest: int | None) -> tuple[int, ...]:
    """The contexts to measure in a model with so many positions; None for any number.

    >>> contexts_of(256), contexts_of(None)
    ((128,), (128, 512, 2048))
    """
    room = CONTEXTS[-1] + 1 if longest is None else longest - STEPS * ROUNDS
    return tuple(context for context in CONTEXTS if context <= room) or (max(1, room),)


# Folders of Hugging Face, with the models of transformers

MEASURED_ROWS = 8  # of the held-out text; their logits are kept while the other model is loaded


def load_folder(folder: Path) -> Any:
    """The model of a folder in its own dtype, as transformers loads it."""
    with needed("transformers", "measuring a Hugging Face folder", "transformers"):
        from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@torch.no_grad()
def agreement_of_folders(folder: Path, out: Path, ids: torch.Tensor) -> Agreement:
    """The agreement of the models of two folders on ids (rows, length); one of them is in memory at a time."""
    found = []
    for each in (folder, out):
        model = load_folder(each)
        found.append([model(row[None], use_cache=False).logits[0, :-1].float() for row in ids[:MEASURED_ROWS]])
        del model
    return agreement(zip(*found, [row[1:] for row in ids[:MEASURED_ROWS]], strict=True))


def speed_of_folders(folder: Path, out: Path) -> list[Speed]:
    """How fast the models of two folders decode; both are in memory."""
    models = [load_folder(each) for each in (folder, out)]
    contexts = contexts_of(getattr(models[0].config, "max_position_embeddings", None))
    return decoding_speed(*(decoder_of_transformers(model) for model in models), contexts)
