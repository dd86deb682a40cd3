"""Measures times of calls, in turns, so that other load on the machine affects every contender alike."""

import gc
import statistics
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

Clock = Callable[[], float]
LEAST_SECONDS = 1e-7  # a call that a clock finds shorter is taken for as long


@dataclass(frozen=True)
class Pace:
    """How often to measure.

    Calls are measured in `rounds` rounds, those of more than `slow` seconds only in `slow_rounds`. Calls shorter than
    `shortest` seconds are repeated within a round.
    """

    rounds: int = 9
    slow_rounds: int = 3
    slow: float = 1.0
    shortest: float = 0.005


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one sample per round.

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
        return {
            "median": self.median,
            "low": min(samples),
            "high": max(samples),
            "samples": samples,
        }


def take_turns(
    calls: Mapping[str, Callable[[], object]], clock: Clock, pace: Pace
) -> dict[str, Times]:
    """Measure calls in turns: every round measures each call once, starting with another call each time.

    Two calls before the rounds warm up and estimate the duration.
    """
    estimates = {name: _trial(call, clock) for name, call in calls.items()}
    repeats = {}
    for name, seconds in estimates.items():
        repeats[name] = max(1, round(pace.shortest / max(seconds, LEAST_SECONDS)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    slow_rounds = _spread(pace.slow_rounds, pace.rounds)
    names = list(calls)
    with _no_collection():
        for number in range(pace.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                is_slow = estimates[name] > pace.slow
                if not is_slow or number in slow_rounds:
                    samples[name].append(_sample(calls[name], repeats[name], clock))
    return {name: Times(tuple(times)) for name, times in samples.items()}


@contextmanager
def threads(number: int) -> Generator[None]:
    """Set the number of torch's threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _trial(call: Callable[[], object], clock: Clock) -> float:
    call()
    began = clock()
    call()
    return clock() - began


def _sample(call: Callable[[], object], repeats: int, clock: Clock) -> float:
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def _spread(few: int, rounds: int) -> set[int]:
    """The rounds in which slow calls are measured."""
    few = min(few, rounds)
    return {(2 * place + 1) * rounds // (2 * few) for place in range(few)}


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
