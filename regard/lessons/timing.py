"""Times that a lesson shows: CPU milliseconds on one thread, each call in its turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from regard.bench.timing import Pace, take_turns, threads

Name = TypeVar("Name", bound=Hashable)
PACE = Pace(rounds=5, slow_rounds=3, slow=0.1, shortest=0.001)


def milliseconds(calls: Mapping[Name, Callable[[], object]]) -> dict[Name, float]:
    """The median of each, without gradients."""
    named = {str(name): call for name, call in calls.items()}
    with threads(1), torch.no_grad():
        times = take_turns(named, time.process_time, PACE)
    return {name: round(1e3 * times[str(name)].median, 3) for name in calls}
