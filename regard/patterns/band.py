"""The structure that most patterns have: a diagonal band of keys, cut to a span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.patterns.ranges import Segments, union

if TYPE_CHECKING:
    from regard.patterns.base import Pattern


@dataclass(frozen=True)
class Band:
    """Query position i sees key position j when `i - left <= j <= i + right` and `start <= j < stop`.

    None means without end. Two bands cut to one band, so a conjunction of bands costs what one costs.
    """

    left: int | None = None
    right: int | None = None
    start: int | None = None
    stop: int | None = None

    def __and__(self, other: Band) -> Band:
        return Band(
            left=_tighter(min, self.left, other.left),
            right=_tighter(min, self.right, other.right),
            start=_tighter(max, self.start, other.start),
            stop=_tighter(min, self.stop, other.stop),
        )

    def keys(self, first: int, last: int, k_len: int) -> range:
        """Keys that at least one of the queries at positions first..last may see.

        >>> Band(left=2, right=0).keys(5, 6, k_len=100)
        range(3, 7)
        """
        start, stop = self._cut(k_len)
        if self.shows_nobody:
            return range(start, start)
        low = start if self.left is None else min(max(start, first - self.left), stop)
        high = stop if self.right is None else min(stop, last + self.right + 1)
        return range(low, max(low, high))

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        """May every query at positions first..last see every one of `keys`?"""
        if not keys or last < first:
            return True
        return (
            (self.left is None or last - self.left <= keys[0])
            and (self.right is None or keys[-1] <= first + self.right)
            and (self.start is None or self.start <= keys[0])
            and (self.stop is None or keys[-1] < self.stop)
        )

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """The keys that all of the queries at positions first..last see, and those that one of them sees."""
        seen = self.keys(first, last, k_len)
        low = seen.start if self.left is None else max(seen.start, last - self.left)
        high = seen.stop if self.right is None else min(seen.stop, first + self.right + 1)
        return Segments(union([range(low, high)]), union([seen]))

    def on_lattice(self, stride: int, residue: int) -> Band:
        """The band among the positions `residue + stride · n`, counted by n."""
        return Band(
            left=None if self.left is None else self.left // stride,
            right=None if self.right is None else self.right // stride,
            start=None if self.start is None else -((residue - self.start) // stride),
            stop=None if self.stop is None else -((residue - self.stop) // stride),
        )

    def as_pattern(self) -> Pattern:
        """The pattern that has this band, in the fewest words."""
        from regard.patterns.diagonals import from_band

        return from_band(self)

    def outside(self) -> list[Band]:
        """Bands that together hold every pair that this one does not."""
        found = []
        if self.left is not None:
            found.append(Band(right=-self.left - 1))
        if self.right is not None:
            found.append(Band(left=-self.right - 1))
        if self.start is not None:
            found.append(Band(stop=self.start))
        return found if self.stop is None else [*found, Band(start=self.stop)]

    def within(self, other: Band) -> bool:
        """Does the other band hold every pair of this one?"""
        return self.shows_nobody or self & other == self

    def count(self, q_start: int, q_len: int, k_len: int) -> int:
        """Allowed pairs, without looking at any of them.

        >>> Band(right=0).count(q_start=0, q_len=1_000_000, k_len=1_000_000)
        500000500000
        """
        start, stop = self._cut(k_len)
        if stop <= start or q_len <= 0 or self.shows_nobody:
            return 0
        below = lambda offset: _pairs_up_to(offset, q_start, q_len, start, stop)  # noqa: E731
        upper = q_len * (stop - start) if self.right is None else below(self.right)
        return upper - (0 if self.left is None else below(-self.left - 1))

    @property
    def shows_nobody(self) -> bool:
        """Does the band end before it begins, as that of `causal & ~causal` does?"""
        crossed = self.left is not None and self.right is not None and -self.left > self.right
        return crossed or (self.stop is not None and self.stop <= (self.start or 0))

    def _cut(self, k_len: int) -> tuple[int, int]:
        """The span within 0 .. k_len, with start <= stop."""
        start = 0 if self.start is None else min(max(0, self.start), k_len)
        return start, k_len if self.stop is None else max(start, min(k_len, self.stop))


def _tighter(choose, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def _pairs_up_to(offset: int, q_start: int, q_len: int, start: int, stop: int) -> int:
    """Pairs with `j <= i + offset`: a row holds clamp(i + offset + 1 - start, 0, stop - start) of them."""
    width = stop - start
    first = q_start + offset + 1 - start  # of the first row, before clamping; grows by one a row
    empty = min(q_len, max(0, -first))
    rising_end = min(q_len, max(empty, width - first))
    rising = rising_end - empty
    return rising * (first + empty) + rising * (rising - 1) // 2 + (q_len - rising_end) * width
