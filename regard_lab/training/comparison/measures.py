"""What one trained model costs and how good it is: scores, speed, and the bytes that it keeps of a text."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.arguments import of_kind, shown, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.reprs import brief
from regard_lab.bench.measuring import peak_of
from regard_lab.decoding import Translator, evaluate
from regard_lab.decoding.translator import Ends
from regard_lab.models import LanguageModel
from regard_lab.models.state import Writer
from regard_lab.text import Pair, score
from regard_lab.training import TrainingResult
from regard_lab.training.recipes.language import LanguageModelTraining
from regard_lab.training.recipes.translation import TranslationTraining
from regard_lab.training.record import Showing

LENGTH = 64  # ids of a text, where nothing else is named
FIRST_ID = 4  # those before it are special


@dataclass(frozen=True)
class Footprint:
    """Bytes kept for one text: some for each id that was read and for each that was written, others once.

    >>> Footprint(read=2048.0, written=1024.0, once=0.0).texts_in(1 << 20, length=64)
    5
    """

    read: float
    written: float
    once: float

    def of(self, length: int) -> float:
        """Bytes of a text with so many ids read and as many written."""
        return self.once + whole("length", length, 0) * (self.read + self.written)

    def texts_in(self, cache_bytes: int, length: int) -> int:
        """How many texts of `length` ids, read and written, fit side by side."""
        return int(whole("cache_bytes", cache_bytes, 0) // max(1.0, self.of(length)))


@torch.inference_mode()
def footprint(model: Writer[Any], length: int = LENGTH) -> Footprint:
    """How the state of a model grows: by texts of `length` ids and of twice as many, and by `length` ids written.

    Caches double their capacity when they are full, so a power of two leaves no unused capacity. The bytes of a window
    are separated from those that grow if the window is no longer than `length`.

    Args:
        model: what can `start` and `step`, on the CPU, where the bytes are the same.
        length: a power of two.

    Raises:
        ArgumentError: what does not write, or a length below 1.
    """
    length = whole("length", length, 1)
    if isinstance(model, type) or not all(callable(getattr(model, name, None)) for name in ("start", "step")):
        raise ArgumentError(f"model is {shown(model)}; it needs a model that writes, with start and step")
    state, longer = (model.start(torch.full((1, count), FIRST_ID)) for count in (length, 2 * length))
    begun = state.nbytes
    for _ in range(length):
        model.step(torch.full((1,), FIRST_ID), state)
    read = (longer.nbytes - begun) / length
    return Footprint(read, (state.nbytes - begun) / length, begun - length * read)


GROUPS = 4  # of test sentences, by length
TIMED_STEPS = 64


@dataclass(frozen=True)
class Spent:
    """What a training took: optimiser steps, target ids, seconds, and bytes at most beyond those before it."""

    steps: int
    tokens: int
    seconds: float
    cpu_seconds: float | None
    peak_bytes: int | None


@brief
@dataclass(frozen=True)
class Measures:
    """One row of a comparison.

    Args:
        name: of the contender.
        parameters: numbers that were trained.
        quality: scores by name.
        spent: on its training.
        decoding: ids written in a second, and the seconds it took for all.
        memory: bytes kept for each id read and written, and once; how many texts fit the cache that was named.
        by_length: for groups of test sentences, the shortest first: words of the source from and to, sentences,
            exact matches and chrF.
        curve: validation losses: (step, seconds, loss).
    """

    name: str
    parameters: int
    quality: dict[str, float]
    spent: Spent
    decoding: dict[str, float]
    memory: dict[str, float]
    by_length: list[dict[str, float]] = field(default_factory=list)
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Measures:
        """The inverse of `to_dict`.

        Raises:
            ArgumentError: it is no such record.
        """
        of_kind("kept", kept, dict, "a dictionary, as to_dict gives it")
        try:
            whole: dict[str, Any] = dict(kept, spent=Spent(**kept["spent"]), curve=[tuple(at) for at in kept["curve"]])
            return cls(**whole)
        except (KeyError, TypeError) as error:
            raise ArgumentError(f"this is no record of a comparison: {error}") from error


def measure_translator(
    name: str, translator: Translator, test: Sequence[Pair], spent: Spent, log: Sequence[dict[str, Any]], *,
    cache_bytes: int, length: int,
) -> Measures:  # fmt: skip
    """Translate the test sentences greedily, score and time that, and measure what the decoder keeps.

    Args:
        name: of the contender.
        translator: what was trained.
        test: pairs that it never saw.
        spent: what its training took.
        log: its lines, as `read_log` gives them.
        cache_bytes, length: how many texts of `length` ids fit into so many bytes?

    Raises:
        ArgumentError: no test sentences.
    """
    began = time.perf_counter()
    found = evaluate(translator, test)
    seconds = time.perf_counter() - began
    ids = sum(len(one.ids) + 1 for one in found.translations)
    ends = Ends(found.translations)
    quality = {
        "BLEU": found.scores.bleu,
        "chrF": found.scores.chrf,
        "exact match": found.scores.exact_match,
        "perplexity": found.perplexity,
        "empty": ends.empty,
        "unfinished": len(ends.limits),
    }
    return Measures(
        name, numbers_of(translator.model), quality, spent,
        decoding={"ids a second": ids / seconds, "seconds": seconds},
        memory=_memory(footprint(translator.model), cache_bytes, length),
        by_length=score_by_length([one.text for one in found.translations], test),
        curve=_curve(log),
    )  # fmt: skip


@torch.inference_mode()
def measure_language_model(
    name: str, model: LanguageModel, spent: Spent, log: Sequence[dict[str, Any]], *, cache_bytes: int, length: int
) -> Measures:
    """The best validation loss, and what writing costs; arguments as for `measure_translator`.

    There is no source: a text has `length` ids, each kept as one that is written.
    """
    curve = _curve(log)
    state = model.start(torch.full((1, TIMED_STEPS), 4))
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        model.step(torch.full((1,), 4), state)
    seconds = time.perf_counter() - began
    memory = _memory(replace(footprint(model), read=0.0), cache_bytes, length)
    return Measures(
        name, numbers_of(model), {"validation loss": min((loss for _, _, loss in curve), default=float("nan"))}, spent,
        decoding={"ids a second": TIMED_STEPS / seconds, "seconds": seconds},
        memory={name: kept for name, kept in memory.items() if name != "bytes an id read"},
        curve=curve,
    )  # fmt: skip


def score_by_length(outputs: Sequence[str], test: Sequence[Pair], groups: int = GROUPS) -> list[dict[str, float]]:
    """Scores of sentences of similar length: equally large groups by the words of the source; equal lengths together.

    >>> pairs = [Pair("a b", "x y"), Pair("a", "x"), Pair("a b c", "x y z"), Pair("a b c d", "w x y z")]
    >>> [(row["words_from"], row["words_to"], row["exact_match"]) for row in
    ...  score_by_length(["x y", "x", "x y", "w x y z"], pairs, groups=2)]
    [(1, 2, 1.0), (3, 4, 0.5)]
    """
    order = sorted(range(len(test)), key=lambda at: _words(test[at]))
    size = -(-len(order) // groups)
    rows: list[dict[str, float]] = []
    begin = 0
    while begin < len(order):
        end = min(begin + size, len(order))
        while end < len(order) and _words(test[order[end]]) == _words(test[order[end - 1]]):
            end += 1
        own = order[begin:end]
        found = score([outputs[at] for at in own], [test[at].target for at in own])
        rows.append({
            "words_from": _words(test[own[0]]), "words_to": _words(test[own[-1]]), "count": len(own),
            "exact_match": found.exact_match, "chrf": found.chrf,
        })  # fmt: skip
        begin = end
    return rows


def _words(pair: Pair) -> int:
    return len(pair.source.split())


def _memory(kept: Footprint, cache_bytes: int, length: int) -> dict[str, float]:
    own = {"bytes an id read": kept.read, "bytes an id written": kept.written, "bytes once": kept.once}
    return {**own, "texts that fit": kept.texts_in(cache_bytes, length)}


def numbers_of(model: torch.nn.Module) -> int:
    """The parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def _curve(log: Sequence[dict[str, Any]]) -> list[tuple[int, float, float]]:
    return [
        (line["step"], line.get("seconds", 0.0), line["loss"])
        for line in log
        if line.get("kind") == "validation" and line.get("loss") is not None
    ]


def count_numbers(config: TranslationTraining.Config, vocab_size: int) -> int:
    """The parameters that a model of these settings has; nothing is allocated."""
    with torch.device("meta"):
        return numbers_of(config.new_model(vocab_size))


def with_as_many_numbers(
    config: TranslationTraining.Config, wanted: int, vocab_size: int
) -> TranslationTraining.Config:
    """The settings with `hidden` such that the model has as nearly as many numbers as wanted."""

    def count(half: int) -> int:
        return count_numbers(replace(config, hidden=2 * half), vocab_size)

    half = bisect_left(range(1, 1 << 14), wanted, key=count) + 1
    best = min((half, max(1, half - 1)), key=lambda half: abs(count(half) - wanted))
    return replace(config, hidden=2 * best)


SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "layers": 1, "vocab_size": 300, "batch_tokens": 256, "steps": 2}


def warm_up(task: str) -> None:
    """Train a small model for two steps, so that no contender's memory includes what the process loads once."""
    with TemporaryDirectory() as folder:
        data = Path(folder, "few.tsv")
        data.write_text("".join(f"a{number} b\tc{number} d\n" for number in range(60)))
        kind = LanguageModelTraining if task == "language-model" else TranslationTraining
        kind.of(Path(folder, "run"), {"data": (str(data),), **SMALL}, cpu=True).train(Path(folder, "run"), cpu=True)


def train_and_watch(
    recipe: TranslationTraining | LanguageModelTraining, run: Path, showing: Showing
) -> tuple[TrainingResult, int | None]:
    """Train or go on, and the bytes held at most meanwhile; None where the system does not report it."""
    results: list[TrainingResult] = []

    def work() -> None:
        training = recipe.prepare(run)
        with showing() as progress:
            results.append(training.run(run, resume=True, cpu=True, progress=progress))

    try:
        peak = peak_of(work)
    except UnsupportedError:
        if results:
            raise
        work()
        return results[0], None
    return results[0], peak
