"""A band: a window of diagonals cut to a span of keys, the structure that most patterns have; and how far one looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regard.patterns.ranges import Segments


@dataclass(frozen=True)
class Reach:
    """How many positions back and ahead of its own a query can learn from; None where there is no limit."""

    back: int | None
    ahead: int | None

    def stacked(self, layers: int) -> Reach:
        """The reach of so many layers."""
        return Reach(_times(self.back, layers), _times(self.ahead, layers))

    def nearer(self, other: Reach) -> Reach:
        return Reach(tighter(min, self.back, other.back), tighter(min, self.ahead, other.ahead))

    def farther(self, other: Reach) -> Reach:
        return Reach(_looser(self.back, other.back), _looser(self.ahead, other.ahead))

    def __str__(self) -> str:
        back = "everything" if self.back is None else self.back
        ahead = "everything" if self.ahead is None else self.ahead
        return f"{back} back, {ahead} ahead"


@dataclass(frozen=True)
class Band:
    """The query at position i may look at key j when `i - left <= j <= i + right` and `start <= j < stop`.

    None means no limit. The intersection of two bands is a band, so `&` of many bands costs what one band costs.

    Args:
        left: how many positions before its own a query may look; below 0 for a gap before it.
        right: how many positions after its own; below 0 for a gap.
        start: the first key that any query may look at.
        stop: one past the last.
    """

    left: int | None = None
    right: int | None = None
    start: int | None = None
    stop: int | None = None

    def __and__(self, other: Band) -> Band:
        return Band(
            left=tighter(min, self.left, other.left),
            right=tighter(min, self.right, other.right),
            start=tighter(max, self.start, other.start),
            stop=tighter(min, self.stop, other.stop),
        )

    def key_range(self, first: int, last: int, k_len: int) -> range:
        """Keys that at least one of the queries at positions first..last may look at.

        >>> Band(left=2, right=0).key_range(5, 6, k_len=100)
        range(3, 7)
        """
        start, stop = self._span(k_len)
        # Also asked in `segments` and `count`: a property would be many more frames of a first call.
        if self.left is not None and self.right is not None and self.left + self.right < 0:
            return range(start, start)  # the window of a query holds no position
        return range(*self.cut(first, last, start, stop))

    def cut(self, first: int, last: int, start: int, stop: int) -> tuple[int, int]:
        """The first of the keys start .. stop - 1 that queries at positions first..last may look at, and their end.

        The start and the stop of the band do not count: those that are given take their place.
        """
        low = start if self.left is None else min(max(first - self.left, start), stop)
        high = stop if self.right is None else min(max(last + self.right + 1, low), stop)
        return low, high

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        """May every query at positions first..last look at every one of `keys`?"""
        if not keys or last < first:
            return True
        return (
            (self.left is None or last - self.left <= keys[0])
            and (self.right is None or keys[-1] <= first + self.right)
            and (self.start is None or self.start <= keys[0])
            and (self.stop is None or keys[-1] < self.stop)
        )

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """The keys allowed for all queries at positions first..last, and those allowed for at least one of them."""
        if self.left is not None and self.right is not None and self.left + self.right < 0:
            return Segments((), ())  # the window of a query holds no position
        low, high = self.cut(first, last, *self._span(k_len))
        some = range(low, high)
        # The last query sees least to the left, the first one least to the right.
        full_low = low if self.left is None else max(low, last - self.left)
        full_high = high if self.right is None else min(high, first + self.right + 1)
        full = range(full_low, full_high)
        return Segments((full,) if full else (), (some,) if some else ())

    def on_lattice(self, stride: int, residue: int) -> Band:
        """The band among the positions `residue + stride · n`, numbered by n."""
        # Window sizes are rounded down; ends of the span, which are positions, are rounded up.
        return Band(
            left=None if self.left is None else self.left // stride,
            right=None if self.right is None else self.right // stride,
            start=None if self.start is None else -((residue - self.start) // stride),
            stop=None if self.stop is None else -((residue - self.stop) // stride),
        )

    @property
    def period(self) -> int | None:
        """1 if a shift of query and key together changes nothing, else None."""
        return 1 if self.start is None and self.stop is None else None

    @property
    def key_period(self) -> int | None:
        """1 if a shift of the key alone changes nothing, else None."""
        return 1 if self == Band() else None

    def reach(self, layers: int = 1) -> Reach:
        return Reach(self.left, self.right).stacked(layers)

    def outside(self) -> list[Band]:
        """Bands whose union holds exactly the pairs that this one does not."""
        bands = []
        if self.left is not None:
            bands.append(Band(right=-self.left - 1))
        if self.right is not None:
            bands.append(Band(left=-self.right - 1))
        if self.start is not None:
            bands.append(Band(stop=self.start))
        if self.stop is not None:
            bands.append(Band(start=self.stop))
        return bands

    def within(self, other: Band) -> bool:
        """Whether the other band holds every pair of this one."""
        return self.is_empty or self & other == self

    def count(self, q_start: int, q_len: int, k_len: int) -> int:
        """The number of allowed pairs, by a closed formula.

        >>> Band(right=0).count(q_start=0, q_len=1_000_000, k_len=1_000_000)
        500000500000
        """
        start, stop = self._span(k_len)
        if stop <= start or q_len <= 0:
            return 0
        if self.left is not None and self.right is not None and self.left + self.right < 0:
            return 0  # the window of a query holds no position
        pairs = q_len * (stop - start)
        if self.right is not None:
            pairs = _pairs_up_to(self.right, q_start, q_len, start, stop)
        if self.left is not None:  # without the keys before the window
            pairs -= _pairs_up_to(-self.left - 1, q_start, q_len, start, stop)
        return pairs

    @property
    def is_empty(self) -> bool:
        """Whether the limits exclude every pair, as those of `causal & ~causal` do."""
        crossed = self.left is not None and self.right is not None and -self.left > self.right
        return crossed or (self.stop is not None and self.stop <= (self.start or 0))

    def _span(self, k_len: int) -> tuple[int, int]:
        """The span within 0 .. k_len, with start <= stop."""
        start = 0 if self.start is None else min(max(0, self.start), k_len)
        stop = k_len if self.stop is None else max(start, min(k_len, self.stop))
        return start, stop


EVERY_PAIR = Band()


def tighter(choose: Callable[[Any, Any], Any], limit: Any, other: Any) -> Any:
    """What `choose` takes of two limits; the other one where one is None, which is no limit."""
    if limit is None:
        return other
    return limit if other is None else choose(limit, other)


def _times(distance: int | None, layers: int) -> int | None:
    """How far so many layers reach, of which each reaches so far; a distance below 0 counts as 0."""
    return None if distance is None else max(0, distance) * layers


def _looser(limit: int | None, other: int | None) -> int | None:
    return None if limit is None or other is None else max(limit, other)


def _pairs_up_to(offset: int, q_start: int, q_len: int, start: int, stop: int) -> int:
    """Pairs with `j <= i + offset`: a row holds clamp(i + offset + 1 - start, 0, stop - start) of them."""
    width = stop - start
    first = q_start + offset + 1 - start  # of the first row, before clamping; grows by one a row
    empty = min(q_len, max(0, -first))
    rising_end = min(q_len, max(empty, width - first))
    rising = rising_end - empty
    return rising * (first + empty) + rising * (rising - 1) // 2 + (q_len - rising_end) * width
