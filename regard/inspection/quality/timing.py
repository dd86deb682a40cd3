"""Times taken in turns, so that a busy moment of the machine meets every call alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

SHORTEST = 0.002  # seconds; a call that is shorter is repeated within its turn


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    """The median time of each call over so many rounds, in each of which every call has its turn.

    On the CPU it is the time that the processor worked, over all its threads; on other devices the time that passed.
    """
    repeats = [max(1, round(SHORTEST / max(_seconds(call, 1, device), 1e-7))) for call in calls]  # and they are warm
    samples: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for turn in range(len(calls)):
            at = (number + turn) % len(calls)
            samples[at].append(_seconds(calls[at], repeats[at], device))
    return [statistics.median(found) for found in samples]


def _seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _finish(device)
    began = clock()
    for _ in range(repeats):
        call()
    _finish(device)
    return (clock() - began) / repeats


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
