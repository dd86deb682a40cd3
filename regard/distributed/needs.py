"""Which keys the queries of each process need from every other process, by the pattern."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import torch

from regard.distributed.layout import Layout, check_division
from regard.errors import UnsupportedError
from regard.patterns import Pattern
from regard.patterns.grid import Grid, true_runs
from regard.patterns.ranges import Ranges, common, everything, meets, size, union
from regard.patterns.visible import seen_keys, visible_keys

# The search for the first and the last query that sees a key ends at blocks of this many queries.
ROWS_SEARCHED_TOGETHER = 64

# "auto" gathers if no process needs more keys of others than this share of the number of its own.
MOST_GATHERED_SHARE = 0.5


class Chunk(NamedTuple):
    """Consecutive positions that one process holds: the chunk `number` of process `rank`."""

    positions: range
    rank: int
    number: int


@dataclass(frozen=True, eq=False)
class Needs:
    """The keys that the queries of each process look at, by the process that holds them.

    Args:
        pattern: of the whole call, by positions in the whole sequence.
        q: how the queries are divided.
        k: how the keys are divided.
        q_start: position of the first query of the whole call.
    """

    pattern: Pattern
    q: Layout
    k: Layout
    q_start: int | torch.Tensor

    @property
    def processes(self) -> int:
        return len(self.q.lengths)

    def held(self, rank: int) -> tuple[Ranges, ...]:
        """The keys that a process holds, chunk by chunk."""
        return tuple((chunk,) if chunk else () for chunk in self.k.chunks[rank])

    @cached_property
    def by_holder(self) -> list[dict[int, tuple[Ranges, ...]]]:
        """For each process the keys that some of its queries may look at, by the process and the chunk that hold them.

        Processes that hold none of them have no entry.
        """
        chunks = self._chunks_of_keys
        starts = [chunk.positions.start for chunk in chunks]
        stops = [chunk.positions.stop for chunk in chunks]

        by_process = []
        for chunks_of_queries in self.q.chunks:
            keys_by_chunk = [self._keys_seen_by(rows) for rows in chunks_of_queries]
            by_rank: dict[int, list[Ranges]] = {}
            for keys in union(chain.from_iterable(keys_by_chunk)):
                first = bisect_right(stops, keys.start)
                end = bisect_left(starts, keys.stop)
                for positions, rank, number in chunks[first:end]:
                    common_keys = range(
                        max(positions.start, keys.start), min(positions.stop, keys.stop)
                    )
                    needed = by_rank.setdefault(rank, [() for _ in self.k.chunks[rank]])
                    needed[number] += (common_keys,)
            by_process.append({rank: tuple(needed) for rank, needed in by_rank.items()})
        return by_process

    @property
    def _chunks_of_keys(self) -> list[Chunk]:
        """The chunks of all processes that hold some key, in the order of their positions."""
        chunks = []
        for rank, held in enumerate(self.k.chunks):
            for number, positions in enumerate(held):
                if positions:
                    chunks.append(Chunk(positions, rank, number))
        return sorted(chunks, key=lambda chunk: chunk.positions.start)

    def _keys_seen_by(self, rows: range) -> Ranges:
        """The keys that some of these queries may look at."""
        pattern = self.pattern
        k_len = self.k.length
        if not rows or not k_len:
            return ()

        grid = Grid.whole(self.q.length, k_len, self.q_start).block(rows, range(k_len))
        varies = pattern.varies_by_head or pattern.varies_by_row
        if isinstance(self.q_start, int) and not varies:
            band = pattern.band()
            if band is not None:
                keys = band.key_range(self.q_start + rows[0], self.q_start + rows[-1], k_len)
                return (keys,) if keys else ()
            if pattern.structured:
                return seen_keys(pattern, grid)

        visible = visible_keys(pattern, grid)
        if visible is None:
            return everything(k_len)
        return true_runs(visible.flatten(0, 1).any(0))

    def between(self, target: int, source: int) -> tuple[Ranges, ...]:
        """The keys that `target` needs of each chunk of `source`."""
        return self.by_holder[target].get(source) or ((),) * len(self.k.chunks[source])

    def count(self, target: int, source: int) -> int:
        """How many keys `target` needs of `source`."""
        return sum(map(size, self.by_holder[target].get(source, ())))

    def sender(self, target: int, source: int, form: str) -> int:
        """The process that sends the keys of `source` to `target`.

        In a ring it is the process before `target` if that one needs all of these keys itself, and passes them on;
        otherwise it is `source`.
        """
        before = (target - 1) % self.processes
        if form != "ring" or before in (source, target):
            return source

        needed = self.between(target, source)
        passing_by = self.between(before, source)
        for keys, keys_before in zip(needed, passing_by, strict=True):
            if common(keys, keys_before) != keys:
                return source
        return before

    def rows_that_see(self, rows: range, keys: range) -> range:
        """The queries from the first to the last of `rows` that may look at some of `keys`; it may hold more."""
        start = self.q_start
        if not isinstance(start, int) or not self.pattern.structured:
            return rows

        def some_sees(first: int, last: int) -> bool:
            seen = self.pattern.segments(start + first, start + last, self.k.length).some
            return meets(seen, keys)

        first = _search(rows, some_sees, backwards=False)
        last = _search(rows, some_sees, backwards=True)
        if first is None or last is None:
            return range(0)
        return range(first, last + 1)

    def keys_near(self, rows: range, keys: range) -> range:
        """The keys from the first to the last of `keys` that some of these queries may look at; it may hold more."""
        if not isinstance(self.q_start, int) or not self.pattern.structured:
            return keys

        first_position = self.q_start + rows[0]
        last_position = self.q_start + rows[-1]
        near = self.pattern.key_range(first_position, last_position, self.k.length)
        start = max(near.start, keys.start)
        return range(start, max(start, min(near.stop, keys.stop)))

    def form(self, asked: str) -> str:
        """The form of the exchange: the one that was asked for, or for "auto" the one that suits the sizes."""
        check_division(self.q.name, asked)
        if asked == "state":
            raise UnsupportedError(
                "form='state' exchanges sums of a fixed size and no keys; use it in attention"
            )
        if asked != "auto":
            return asked

        for rank, by_rank in enumerate(self.by_holder):
            fetched = sum(self.count(rank, source) for source in by_rank if source != rank)
            if fetched > MOST_GATHERED_SHARE * self.k.lengths[rank]:
                return "ring"
        return "gather"


@lru_cache(maxsize=64)
def _remembered_needs(pattern: Pattern, q: Layout, k: Layout, q_start: int) -> Needs:
    return Needs(pattern, q, k, q_start)


def needs_of(pattern: Pattern, q: Layout, k: Layout, q_start: int | torch.Tensor) -> Needs:
    """The `Needs` of a call; those of patterns without tensors are kept for later calls, as plans are."""
    if isinstance(q_start, torch.Tensor) or not pattern.by_value:
        return Needs(pattern, q, k, q_start)
    return _remembered_needs(pattern, q, k, q_start)


def _search(rows: range, some_sees: Callable[[int, int], bool], backwards: bool) -> int | None:
    """The first row that sees something (`backwards`: the last one), to within a block; None if no row does."""
    if not rows or not some_sees(rows[0], rows[-1]):
        return None
    if len(rows) <= ROWS_SEARCHED_TOGETHER:
        return rows[-1] if backwards else rows[0]

    middle = len(rows) // 2
    halves = [rows[:middle], rows[middle:]]
    if backwards:
        halves.reverse()
    in_nearer_half = _search(halves[0], some_sees, backwards)
    if in_nearer_half is not None:
        return in_nearer_half
    return _search(halves[1], some_sees, backwards)
