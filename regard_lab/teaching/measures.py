"""What lessons measure: sizes of numbers, operations, comparisons, CPU milliseconds."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard_lab.bench.measuring import Pace, take_turns, threads

ROUNDING = "equal except for rounding"  # of claims that compare two results in float64
PACE = Pace(rounds=41, slow_rounds=5, slow=0.05, shortest=0.001)  # times in seconds
Name = TypeVar("Name", bound=Hashable)


def rounded(values: torch.Tensor, digits: int = 4) -> Any:
    """Nested lists, rounded so that different processors give the same values."""
    return torch.round(values.detach().double(), decimals=digits).tolist()


def largest(values: torch.Tensor) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return float(values.detach().abs().max()) if values.numel() else 0.0


def operations(call: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of a call, as torch counts them.

    >>> operations(lambda: torch.zeros(2, 3) @ torch.zeros(3, 4))
    48
    """
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def comparisons(numbers: Sequence[int]) -> int:
    """How many comparisons a sort of the numbers makes.

    >>> comparisons([1, 2, 3, 4])
    3
    """
    count = 0

    def compare(left: int, right: int) -> int:
        nonlocal count
        count += 1
        return left - right

    sorted(numbers, key=cmp_to_key(compare))
    return count


def milliseconds(calls: Mapping[Name, Callable[[], object]]) -> dict[Name, float]:
    """The least CPU time of each call in milliseconds, on one thread and without gradients.

    The least of many rounds in turns, because other work on the machine only adds time.
    """
    calls_by_text = {str(name): call for name, call in calls.items()}
    with threads(1), torch.no_grad():
        times = take_turns(calls_by_text, time.process_time, PACE)

    least = {}
    for name in calls:
        seconds = min(times[str(name)].samples)
        least[name] = round(1e3 * seconds, 3)
    return least
