"""Checks of the arguments of patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import torch

from regard.arguments import in_memory, is_whole, plain, refuse_wrapper, shown, whole
from regard.errors import ArgumentError
from regard.patterns.ranges import Ranges

MOST = 1_000_000  # positions listed one by one
at_least_one = partial(whole, least=1)
at_least_zero = partial(whole, least=0)


def positions(name: str, numbers: Iterable[int]) -> tuple[int, ...]:
    """Distinct positions in ascending order.

    >>> positions("indices", [3, 0, 3])
    (0, 3)
    """
    what = f"a position of {name}"
    try:
        listed = [plain(what, position) for position in islice(numbers, MOST + 1)]
    except TypeError:
        raise ArgumentError(
            f"{name} is {shown(numbers)}; it needs positions, such as [0, 5] or range(128)"
        ) from None
    if len(listed) > MOST:
        raise ArgumentError(
            f"{name} names more than {MOST} positions; for a long span there is key_span(start, stop)"
        )
    return tuple(sorted({whole(what, position, 0) for position in listed}))


def runs(numbers: Iterable[int]) -> Ranges:
    """Neighbouring numbers joined to ranges.

    >>> runs([3, 1, 2, 7])
    (range(1, 4), range(7, 8))
    """
    joined: list[range] = []
    for number in sorted(set(numbers)):
        if joined and joined[-1].stop == number:
            joined[-1] = range(joined[-1].start, number + 1)
        else:
            joined.append(range(number, number + 1))
    return tuple(joined)


def words(ranges: Ranges) -> str:
    """Ranges as a text writes them, both ends included; one or two positions separately.

    >>> words((range(0, 2), range(5, 9)))
    '0, 1, 5..8'
    """
    named: list[str] = []
    for run in ranges:
        if len(run) > 2:
            named.append(f"{run[0]}..{run[-1]}")
        else:
            named += map(str, run)
    return ", ".join(named)


def spans(name: str, ranges: Iterable[range]) -> Ranges:
    """The ranges; an ArgumentError for anything else."""
    checked = tuple(ranges) if isinstance(ranges, list | tuple) else None
    if checked is None or not all(isinstance(run, range) for run in checked):
        raise ArgumentError(
            f"{name} is {shown(ranges)}; it needs ranges of positions, such as (range(0, 4),)"
        )
    return checked


def check_sizes(q_len: int, k_len: int) -> tuple[int, int]:
    """The numbers of queries and keys, checked."""
    return whole("q_len", q_len, 0), whole("k_len", k_len, 0)


def start_of(q_start: int | None) -> int | None:
    return None if q_start is None else whole("q_start", q_start)


def starts_of(q_start: int | torch.Tensor | None) -> int | torch.Tensor | None:
    """The position of the first query, one for each batch row, or None."""
    if not isinstance(q_start, torch.Tensor) or q_start.dim() != 1:
        return start_of(q_start)  # ty: ignore[invalid-argument-type]  # a tensor of one number is a number
    if (
        q_start.is_floating_point()
        or q_start.is_complex()
        or q_start.dtype == torch.bool
        or not len(q_start)
    ):
        raise ArgumentError(
            f"q_start is {shown(q_start)}; it needs whole numbers, one for each batch row"
        )
    refuse_wrapper("q_start", q_start)
    return in_memory("q_start", q_start)


ByRow = int | torch.Tensor
"""A whole number, or an integer tensor with one for each batch row."""


def number_by_row(name: str, number: object) -> ByRow:
    """A number, or an integer tensor (batch,), which is copied."""
    number = plain(name, number)
    if isinstance(number, torch.Tensor):
        if number.dim() != 1 or number.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(
                f"{name} is a {number.dtype} tensor {tuple(number.shape)}; it needs integers (batch,)"
            )
        refuse_wrapper(name, number)
        return in_memory(name, number).detach().to(torch.int64, copy=True)
    if not is_whole(number):
        raise ArgumentError(
            f"{name} is {shown(number)}; it needs a number or an integer tensor (batch,)"
        )
    return whole(name, number)


def whole_numbers(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers of a list with one for each batch row."""
    if not numbers:
        raise ArgumentError(
            f"{name} is {shown(numbers)}; a list holds one whole number for each batch row"
        )
    return tuple(whole(f"a number of {name}", number) for number in numbers)


def on_rows(number: ByRow, device: torch.device) -> ByRow:
    """Numbers by batch row with the four axes of a call, on its device; a single number stays one."""
    if isinstance(number, torch.Tensor):
        return number.to(device).view(-1, 1, 1, 1)
    return number
