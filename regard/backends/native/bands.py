"""Patterns that are one band within a span of keys for each batch row, as padding has.

Plans ask for the bounds of many queries as tensors. A step of decoding asks for numbers: a single operation on tensors
would take longer than all of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch

from regard.core.problem import Problem
from regard.patterns import Pattern
from regard.patterns.band import EVERY_PAIR, Band
from regard.patterns.bands import row_span

EVERY_KEY_BEFORE = 2**31 - 1  # returned by `entries_before` where a query looks at all earlier keys
NO_STOP = 2**31 - 1  # the stop of a span that ends with the keys of the call, however many they are

Entry = TypeVar("Entry")


class RowBand(NamedTuple):
    """The keys of a query: those in its window, within a span of its batch row.

    window: a band without start and stop. spans: start and stop of each batch row, or of all of them.
    """

    window: Band
    spans: list[tuple[int, int]]

    def span(self, row: int, keys: range) -> tuple[int, int]:
        """Start and stop of the keys of a batch row that some query may look at, among `keys`."""
        start, stop = entry_of(row, self.spans)
        low = min(max(start, keys.start), keys.stop)
        return low, min(max(stop, low), keys.stop)

    def origin(self, row: int, k_len: int) -> int:
        """Where the panels of a batch row begin: at its first key, whichever keys a call still holds."""
        start, _ = entry_of(row, self.spans)
        return min(max(start, 0), k_len)

    def bounds(
        self, starts: list[int], q_len: int, keys: range
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first key and the end of the keys of each query, both int64 (1 or batch, q_len), within `keys`.

        Both grow with the query, and are equal where it may look at no key.

        Args:
            starts: the position of the first query of each batch row, or of all of them.
            q_len: the number of queries.
            keys: those that the tensors of the call hold.
        """
        spans = [self.span(row, keys) for row in range(len(self.spans))]
        low_and_high = torch.tensor(spans, dtype=torch.int64, device="cpu")
        low = low_and_high[:, :1]
        high = low_and_high[:, 1:]
        first_positions = torch.tensor(starts, device="cpu")[:, None]
        positions = first_positions + torch.arange(q_len, device="cpu")

        lo = low
        if self.window.left is not None:
            lo = (positions - self.window.left).clamp(low, high)
        hi = high
        if self.window.right is not None:
            hi = (positions + (self.window.right + 1)).clamp(lo, high)
        rows = max(lo.shape[0], hi.shape[0])
        return lo.expand(rows, q_len), hi.expand(rows, q_len)

    def bounds_of_one_query(
        self, starts: list[int], q_len: int, keys: range
    ) -> tuple[int, int] | None:
        """The same for one query of all batch rows; None for more queries, or where batch rows differ."""
        if q_len > 1 or len(starts) > 1 or len(self.spans) > 1:
            return None
        (position,) = starts
        low, high = self.span(0, keys)
        return self.window.cut(position, position, low, high)

    def listed_bounds(
        self, position: int, q_len: int, low: int, high: int
    ) -> tuple[list[int], list[int]]:
        """The same for the queries of one batch row from a position on, whose keys are low to high."""
        lo = [low] * q_len
        if self.window.left is not None:
            lo = clamped(position - self.window.left, q_len, low, high)
        hi = [high] * q_len
        if self.window.right is not None:
            hi = clamped(position + self.window.right + 1, q_len, low, high)
        if self.window.left is not None and self.window.right is not None:
            # The end of a window that holds no position lies before its beginning.
            hi = [*map(max, lo, hi)]
        return lo, hi


def clamped(first: int, count: int, low: int, high: int) -> list[int]:
    """So many numbers from `first` on, each between low and high.

    >>> clamped(2, 6, 4, 6)
    [4, 4, 4, 5, 6, 6]
    """
    below = min(max(low - first, 0), count)
    above = min(max(first + count - 1 - high, 0), count)
    return [low] * below + [*range(first + below, first + count - above)] + [high] * above


def row_band_of(pattern: Pattern) -> RowBand | None:
    """The pattern, if it is bands and spans of keys by batch row that are joined by `&`; None for any other."""
    window = EVERY_PAIR
    starts = [0]
    stops = [NO_STOP]
    for part in pattern.factors:
        span = row_span(part)
        if span is not None:
            span_starts, span_stops = span
            starts = _each(max, starts, _numbers_by_row(span_starts))
            if span_stops is not None:
                stops = _each(min, stops, _numbers_by_row(span_stops))
            continue
        band = part.known_band
        if band is None:
            return None
        window = band if window is EVERY_PAIR else window & band
    if window.start is not None:
        starts = _each(max, starts, [window.start])
    if window.stop is not None:
        stops = _each(min, stops, [window.stop])
    if len(starts) != len(stops):
        rows = max(len(starts), len(stops))
        starts = _for_rows(starts, rows)
        stops = _for_rows(stops, rows)
    return RowBand(Band(window.left, window.right), [*zip(starts, stops, strict=True)])


def entries_before(pattern: Pattern) -> int | None:
    """How many keys before its own the last query looks at; None if its keys are not exactly these."""
    band = row_band_of(pattern.canonical())
    if band is None or band.spans != [(0, NO_STOP)] or band.window.is_empty:
        return None
    left = band.window.left
    right = band.window.right
    if right is not None and right < 0:
        return None
    if left is None:
        return EVERY_KEY_BEFORE
    return left if left >= 0 else None


def row_band_of_problem(problem: Problem) -> RowBand | None:
    """The pattern of a problem, found once."""
    return problem.once(_row_band_of_problem)


def _row_band_of_problem(problem: Problem) -> RowBand | None:
    return row_band_of(problem.pattern)


def first_positions(q_start: int | torch.Tensor | None, q_len: int, k_len: int) -> list[int]:
    """The position of the first query of each batch row, or of all of them."""
    if isinstance(q_start, torch.Tensor):
        return q_start.tolist()
    if q_start is None:
        return [k_len - q_len]  # the last query is aligned with the last key
    return [q_start]


def entry_of(row: int, entries: Sequence[Entry]) -> Entry:
    """The entry of a batch row, where a single one is that of all rows."""
    return entries[row] if len(entries) > 1 else entries[0]


def _each(
    choose: Callable[[int, int], int], numbers: list[int], more_numbers: list[int]
) -> list[int]:
    """`choose` of each pair of numbers; a list of one number stands for all rows."""
    rows = max(len(numbers), len(more_numbers))
    return [*map(choose, _for_rows(numbers, rows), _for_rows(more_numbers, rows))]


def _numbers_by_row(numbers: torch.Tensor) -> list[int]:
    """The numbers of a tensor (batch,), or the single one of a tensor without axes."""
    listed = numbers.tolist()
    return listed if isinstance(listed, list) else [listed]


def _for_rows(numbers: list[int], rows: int) -> list[int]:
    return numbers * rows if len(numbers) == 1 else numbers
