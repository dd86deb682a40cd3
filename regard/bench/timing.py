"""Times taken in turns, so that a busy moment of the machine meets every contender alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Clock = Callable[[], float]


@dataclass(frozen=True)
class Pace:
    """How often to measure: `rounds` turns, but `slow_rounds` for calls of more than `slow` seconds; calls that are
    shorter than `shortest` seconds are repeated within a turn."""

    rounds: int = 9
    slow_rounds: int = 3
    slow: float = 1.0
    shortest: float = 0.005


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one sample a turn.

    >>> Times((0.3, 0.1, 0.2)).to_dict()
    {'median': 0.2, 'low': 0.1, 'high': 0.3, 'samples': [0.3, 0.1, 0.2]}
    """

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def to_dict(self) -> dict[str, float | list[float]]:
        """Median, extremes and every sample, in seconds."""
        samples = list(self.samples)
        return {"median": self.median, "low": min(samples), "high": max(samples), "samples": samples}


def take_turns(calls: Mapping[str, Callable[[], object]], clock: Clock, pace: Pace) -> dict[str, Times]:
    """Seconds of each call: in every round each has its turn, and the next round begins with the next.

    The first two calls of each warm up and tell how long it takes.
    """
    long = {name: _trial(call) for name, call in calls.items()}
    repeats = {name: max(1, round(pace.shortest / max(seconds, 1e-7))) for name, seconds in long.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with _no_collection():
        for number in range(pace.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                if long[name] > pace.slow and number not in _spread(pace.slow_rounds, pace.rounds):
                    continue
                samples[name].append(_sample(calls[name], repeats[name], clock))
    return {name: Times(tuple(found)) for name, found in samples.items()}


@contextmanager
def threads(number: int) -> Generator[None]:
    """So many threads, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trial(call: Callable[[], object]) -> float:
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _sample(call: Callable[[], object], repeats: int, clock: Clock) -> float:
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def _spread(few: int, rounds: int) -> set[int]:
    """The rounds in which slow calls have their turn."""
    few = min(few, rounds)
    return {(2 * at + 1) * rounds // (2 * few) for at in range(few)}


@contextmanager
def _no_collection() -> Generator[None]:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
