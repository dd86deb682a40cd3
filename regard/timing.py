"""How long calls take, measured in turns."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

SHORTEST = 0.002  # seconds; a shorter call is repeated within its turn


def median_seconds(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    """The median time of each call over `rounds` rounds, in each of which every call is measured once.

    On the CPU it is CPU time on one thread: that of several depends on how busy the machine is. On other devices it is
    elapsed time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _medians(calls, rounds, device)
    finally:
        torch.set_num_threads(threads)


def _medians(calls: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    repeats = [max(1, round(SHORTEST / max(_seconds(call, 1, device), 1e-7))) for call in calls]  # also warms up
    samples: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for turn in range(len(calls)):
            at = (number + turn) % len(calls)
            samples[at].append(_seconds(calls[at], repeats[at], device))
    return [statistics.median(times) for times in samples]


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
