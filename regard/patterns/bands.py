"""Patterns that are one band: causal, windows, diagonals, a span of keys, and the pattern that a band stands for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from regard.arguments import check_fields, count_of, whole
from regard.errors import ShapeError
from regard.patterns.algebra import NOTHING, Many, Not, both
from regard.patterns.arguments import (
    at_least_one,
    at_least_zero,
    number_by_row,
    on_rows,
    whole_numbers,
)
from regard.patterns.band import Band
from regard.patterns.base import Origins, Pattern
from regard.patterns.held import TensorPattern, new_serial
from regard.patterns.registry import word
from regard.patterns.row_keys import RowKeys, column, has_numbers
from regard.reprs import brief

# The start or the stop of a span of keys, as it is given.
End = int | Sequence[int] | torch.Tensor | None


@dataclass(frozen=True)
class Causal(Pattern):
    """A query may look at the keys at its own position and before it: `j <= i`.

    >>> Causal().dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return k_pos <= q_pos

    def form(self) -> Band:
        return Band(right=0)


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """A query may look at `size // 2` keys on each side and at its own: `|i - j| <= size // 2`.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> SlidingWindow(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_fields(self, size=at_least_one)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (q_pos - k_pos).abs() <= self.size // 2

    def form(self) -> Band:
        return Band(left=self.size // 2, right=self.size // 2)


@dataclass(frozen=True)
class CausalWindow(Pattern):
    """A query may look at `size` keys, the last of which is its own: `0 <= i - j < size`.

    Source: Mistral 7B, Jiang et al. 2023, section 2.

    >>> CausalWindow(2).dense(3, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_fields(self, size=at_least_one)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return (k_pos <= q_pos) & (q_pos - k_pos < self.size)

    def form(self) -> Band:
        return Band(left=self.size - 1, right=0)


@dataclass(frozen=True)
class Diagonals(Pattern):
    """A query may look at keys with `-back <= k_pos - q_pos <= ahead`; None for no limit, below 0 for a gap.

    >>> Diagonals(back=2, ahead=-1).dense(3, 3).int().tolist()
    [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    """

    back: int | None = None
    ahead: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, back=_limit, ahead=_limit)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        distance = k_pos - q_pos
        allowed = torch.ones_like(distance, dtype=torch.bool)
        if self.back is not None:
            allowed &= distance >= -self.back
        if self.ahead is not None:
            allowed &= distance <= self.ahead
        return allowed

    def form(self) -> Band:
        return Band(left=self.back, right=self.ahead)

    def __str__(self) -> str:
        return f"diagonals({word(self.back)}, {word(self.ahead)})"


def _limit(name: str, end: int | None) -> int | None:
    return None if end is None else whole(name, end, needs="a whole number, or None for no limit")


@dataclass(frozen=True)
class Prefix(Pattern):
    """Every query may look at the first `length` keys: `j < length`; `Causal() | Prefix(n)` is a prefix language model.

    >>> Prefix(2).dense(1, 4).int().tolist()
    [[1, 1, 0, 0]]
    """

    length: int

    query_free = True
    compares_positions = False

    def __post_init__(self) -> None:
        check_fields(self, length=at_least_zero)

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return torch.broadcast_tensors(q_pos, k_pos)[1] < self.length

    def form(self) -> Band:
        return Band(start=0, stop=self.length)

    def _moved(self, origins: Origins) -> Pattern:
        return _span(0, self.length, origins)


@brief
@dataclass(frozen=True, eq=False)
class KeySpan(TensorPattern):
    """Every query may look at keys `start <= j < stop`; use it for left and right padding.

    Args:
        start: the first key: a number, or one for each batch row as a list or an integer tensor (batch,).
        stop: one past the last key, likewise; None for no limit.

    With lists it is a value like any other pattern: equal to every KeySpan of the same numbers, so that calls share
    their plans. With a tensor it is equal only to itself. On the CPU one plan serves every set of numbers
    by batch row, alone and joined by `&` with bands and masks.

    >>> KeySpan(1, 3).dense(1, 4).int().tolist()
    [[0, 1, 1, 0]]
    >>> KeySpan(0, torch.tensor([1, 2])).dense(1, 2).shape
    torch.Size([2, 1, 1, 2])
    >>> print(KeySpan([0, 3]) & KeySpan(0, 9))
    key_span((0, 3)) & key_span(0, 9)
    """

    start: End = 0
    stop: End = None
    # start and stop as numbers and tuples, where neither was given as a tensor
    values: tuple[Any, ...] = field(default=(), init=False, repr=False)

    query_free = True
    compares_positions = False

    def __post_init__(self) -> None:
        values: list[Any] = []  # the start and the stop
        for name in ("start", "stop"):
            end: Any = getattr(self, name)
            if isinstance(end, list | tuple):
                values.append(whole_numbers(f"KeySpan's {name}", end))
                end = torch.tensor(values[-1], dtype=torch.int64, device="cpu")
            elif end is not None or name == "start":
                end = number_by_row(f"KeySpan's {name}", end)
                values.append(end)
            else:
                values.append(None)
            object.__setattr__(self, name, end)
        if any(isinstance(value, torch.Tensor) for value in values):
            object.__setattr__(self, "serial", new_serial())
        else:
            object.__setattr__(self, "values", tuple(values))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.start, int | torch.Tensor)
        assert isinstance(self.stop, int | torch.Tensor | None)
        _, keys = torch.broadcast_tensors(q_pos, k_pos)
        allowed = keys >= on_rows(self.start, k_pos.device)
        if self.stop is not None:
            allowed = allowed & (k_pos < on_rows(self.stop, k_pos.device))
        return allowed

    def form(self) -> Band | None:
        if self._tensors():
            return None
        assert isinstance(self.start, int)
        assert isinstance(self.stop, int | None)
        return Band(start=self.start, stop=self.stop)

    @property
    def varies_by_row(self) -> bool:  # type: ignore[override]
        return bool(self._tensors())

    @property
    def batch_rows(self) -> int:
        return max((end.shape[0] for end in self._tensors().values()), default=1)

    @cached_property
    def row_keys(self) -> RowKeys | None:  # ty: ignore[incompatible-attribute-override]
        if not self.varies_by_row or not all(map(has_numbers, self._tensors().values())):
            return None
        structure = "key_span", self.batch_rows
        return RowKeys(structure, starts=column(self.start), stops=column(self.stop))

    def for_row(self, row: int) -> Pattern:
        if not self.varies_by_row:
            return self
        return KeySpan(_in_row(self.start, row), _in_row(self.stop, row))

    def _moved(self, origins: Origins) -> Pattern | None:
        if self.varies_by_row:
            return None
        assert isinstance(self.start, int)
        assert isinstance(self.stop, int | None)
        return _span(self.start, self.stop, origins)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for name, tensor in self._tensors().items():
            if tensor.shape[0] not in (1, batch):
                raise ShapeError(
                    f"KeySpan's {name} holds {count_of(len(tensor), 'numbers')} but the batch has "
                    f"{count_of(batch, 'rows')}; give one for each"
                )

    def _tensors(self) -> dict[str, torch.Tensor]:
        ends = {"start": self.start, "stop": self.stop}
        return {name: end for name, end in ends.items() if isinstance(end, torch.Tensor)}

    def numbers(self) -> tuple[Any, ...]:
        return self.values

    def __str__(self) -> str:
        ends = [self.start, self.stop] if self.serial else list(self.values)
        if self.stop is None:
            del ends[1:]
        return f"key_span({', '.join(map(_written_end, ends))})"


def _written_end(end: Any) -> str:
    if isinstance(end, torch.Tensor):
        return f"<{count_of(len(end), 'numbers')}>"
    return str(end)


def row_span(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Where a pattern is a span of keys for each batch row, its starts and stops; else None."""
    if not isinstance(pattern, KeySpan) or not pattern.varies_by_row:
        return None
    start = torch.as_tensor(pattern.start, device="cpu")
    stop = None if pattern.stop is None else torch.as_tensor(pattern.stop, device="cpu")
    return start, stop


def without_numbers(pattern: Pattern) -> Hashable | None:
    """What patterns that differ only in the numbers of spans by batch row have in common; None for other tensors.

    It is the pattern itself where no span differs by batch row.
    """
    if isinstance(pattern, KeySpan) and pattern.varies_by_row:
        return "key_span", _without_numbers(pattern.start), _without_numbers(pattern.stop)
    if isinstance(pattern, Many) and pattern.varies_by_row:
        parts = [without_numbers(part) for part in pattern.parts]
        return None if None in parts else (pattern.sign, *parts)
    return pattern if pattern.by_value else None


def _without_numbers(end: End) -> Any:
    return len(end) if isinstance(end, torch.Tensor) else end


def with_every_key(row_keys: RowKeys, batch: int) -> Pattern:
    """A pattern with the window of these keys, whose batch rows may look at every key.

    A plan for it serves all patterns of the same structure.
    """
    return both(from_band(row_keys.window), KeySpan([0] * batch))


def _in_row(end: End, row: int) -> int | Any:
    if not isinstance(end, torch.Tensor):
        return end
    return int(end[row if len(end) > 1 else 0])


def _span(start: int, stop: int | None, origins: Origins) -> Pattern:
    """Keys from start to stop, counted from the origin of each batch row."""
    if isinstance(origins, torch.Tensor):
        return KeySpan(origins + start, None if stop is None else origins + stop)
    starts = _moved_end(start, origins)
    if stop is None:
        return KeySpan(starts)
    return KeySpan(starts, _moved_end(stop, origins))


def _moved_end(end: int, origins: Sequence[int]) -> int | list[int]:
    """An end counted from each of these origins; one number for a single origin."""
    ends = [max(0, end + origin) for origin in origins]
    return ends[0] if len(ends) == 1 else ends


def from_band(band: Band) -> Pattern:
    """The shortest pattern with this band."""
    if band.is_empty:
        return NOTHING
    parts: list[Pattern] = []
    left, right = band.left, band.right
    if left is None and right == 0:
        parts.append(Causal())
    elif left is not None and right == 0:
        parts.append(CausalWindow(left + 1))
    elif left is not None and left == right:
        parts.append(SlidingWindow(2 * left))
    elif left == -1 and right is None:
        parts.append(Not(Causal()))
    elif left is not None or right is not None:
        parts.append(Diagonals(left, right))
    start = max(0, band.start or 0)
    if start or band.stop is not None:
        parts.append(KeySpan(start, band.stop))
    return both(*parts)
