"""How fast a model decodes before and after a conversion, by the length of the context, and what its cache holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from regard.models import LanguageModel

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
        cache = model(torch.full((1, context), 4), use_cache=True).past_key_values
        tensors = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        held = sum(x.numel() * x.element_size() for x in tensors)
        return lambda: model(one, past_key_values=cache, use_cache=True), held

    return begin


def contexts_of(longest: int | None) -> tuple[int, ...]:
    """The contexts to measure in a model with so many positions; None for any number.

    >>> contexts_of(256), contexts_of(None)
    ((128,), (128, 512, 2048))
    """
    room = CONTEXTS[-1] + 1 if longest is None else longest - STEPS * ROUNDS
    return tuple(context for context in CONTEXTS if context <= room) or (max(1, room),)
