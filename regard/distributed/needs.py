"""Which positions each process holds, and which keys it needs from every other process, by the pattern."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import torch

from regard.arguments import one_of, whole
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.patterns import Grid, Pattern
from regard.patterns.grid import true_runs
from regard.patterns.ranges import Ranges, common, everything, meets, size, union
from regard.patterns.visible import seen_keys, visible_keys
from regard.reprs import brief

LAYOUTS = ("contiguous", "zigzag")
FORMS = ("auto", "ring", "gather", "state")
ROWS = 64  # queries looked at together where the first or last one that sees a key is searched for
NARROW = 0.5  # auto gathers if the keys that come from other processes are at most this share of a process's own


@brief
@dataclass(frozen=True)
class Layout:
    """A sequence divided among processes.

    contiguous: process r holds one chunk, the r-th. zigzag: it holds two, the r-th from the front and the r-th from the
    back. Under a causal pattern early positions look at few keys and late ones at many, so that with zigzag every
    process computes about as many pairs.

    Args:
        name: "contiguous" or "zigzag".
        lengths: how many positions each process holds; they may differ. With zigzag the first chunk of a process has
            the larger half.

    Raises:
        ArgumentError: another name, or lengths that are not whole numbers, 0 or more.

    >>> Layout("zigzag", (4, 3)).chunks
    ((range(0, 2), range(5, 7)), (range(2, 4), range(4, 5)))
    """

    name: str
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        one_of("layout", self.name, LAYOUTS)
        lengths = tuple(whole("the length that a process holds", one, 0) for one in self.lengths)
        if not lengths:
            raise ArgumentError(
                "a layout without processes; give the length that each process holds"
            )
        object.__setattr__(self, "lengths", lengths)

    @classmethod
    def even(cls, name: str, length: int, processes: int) -> Layout:
        """A length divided as evenly as possible; the first processes hold one position more.

        >>> Layout.even("contiguous", 7, 3).lengths
        (3, 2, 2)
        """
        each, more = divmod(whole("length", length, 0), whole("processes", processes, 1))
        return cls(name, tuple(each + (rank < more) for rank in range(processes)))

    @property
    def length(self) -> int:
        """Positions of the whole sequence."""
        return sum(self.lengths)

    @cached_property
    def chunks(self) -> tuple[tuple[range, ...], ...]:
        """The positions of each process, chunk by chunk in the order in which it holds them."""
        first = (
            self.lengths
            if self.name == "contiguous"
            else [-(-length // 2) for length in self.lengths]
        )
        second = [length - half for length, half in zip(self.lengths, first, strict=True)]
        chunks = [range(*pair) for pair in pairwise(accumulate([*first, *second[::-1]], initial=0))]
        if self.name == "contiguous":
            return tuple((chunk,) for chunk in chunks[: len(first)])
        return tuple((chunks[rank], chunks[-1 - rank]) for rank in range(len(first)))

    def positions(self, rank: int) -> torch.Tensor:
        """The positions that a process holds, int64 (held,)."""
        return torch.cat(
            [torch.arange(chunk.start, chunk.stop, device="cpu") for chunk in self.chunks[rank]]
        )


def shard(x: torch.Tensor, layout: Layout, rank: int, dim: int = 2) -> torch.Tensor:
    """One process's part of a whole tensor, along the axis of its positions.

    Args:
        x: the whole tensor, (batch, heads, length, size) for the default `dim`.
        layout: how the length is divided.
        rank: of the process.
        dim: the axis that is divided.

    Raises:
        ShapeError: the axis has another length than the layout.

    >>> shard(torch.arange(7), Layout("zigzag", (4, 3)), rank=0, dim=0).tolist()
    [0, 1, 5, 6]
    """
    if x.shape[dim] != layout.length:
        raise ShapeError(
            f"axis {dim} of {tuple(x.shape)} has {x.shape[dim]} positions; the layout divides {layout.length}"
        )
    return torch.cat([x.narrow(dim, chunk.start, len(chunk)) for chunk in layout.chunks[rank]], dim)


def unshard(parts: Sequence[torch.Tensor], layout: Layout, dim: int = 2) -> torch.Tensor:
    """The whole tensor from the parts of all processes, in their order; the inverse of `shard`.

    >>> layout = Layout("zigzag", (4, 3))
    >>> unshard([shard(torch.arange(7), layout, rank, dim=0) for rank in range(2)], layout, dim=0).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    order = torch.cat([layout.positions(rank) for rank in range(len(layout.lengths))])
    return torch.cat(tuple(parts), dim).index_select(dim, order.argsort().to(parts[0].device))


def check_division(layout: str, form: str) -> None:
    """Raise an ArgumentError unless these are the names of a layout and a form."""
    Layout(layout, (0,))
    one_of("form", form, FORMS)


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

    @cached_property
    def by_holder(self) -> list[dict[int, tuple[Ranges, ...]]]:
        """For each process the keys that some of its queries may look at, by the process and the chunk that hold them.

        Processes that hold none of them have no entry.
        """
        chunks = [
            (keys, rank, at)
            for rank, held in enumerate(self.k.chunks)
            for at, keys in enumerate(held)
            if keys
        ]
        chunks.sort(key=lambda one: one[0].start)
        starts, stops = (
            [edge(keys) for keys, _, _ in chunks] for edge in (lambda x: x.start, lambda x: x.stop)
        )
        every = []
        for rows_of_process in self.q.chunks:
            found: dict[int, list[Ranges]] = {}
            for run in union(keys for rows in rows_of_process for keys in self._of_rows(rows)):
                for keys, rank, at in chunks[
                    bisect_right(stops, run.start) : bisect_left(starts, run.stop)
                ]:
                    some = range(max(keys.start, run.start), min(keys.stop, run.stop))
                    found.setdefault(rank, [() for _ in self.k.chunks[rank]])[at] += (some,)
            every.append({rank: tuple(ranges) for rank, ranges in found.items()})
        return every

    def _of_rows(self, rows: range) -> Ranges:
        pattern = self.pattern
        k_len = self.k.length
        if not rows or not k_len:
            return ()
        grid = Grid.whole(self.q.length, k_len, self.q_start).block(rows, range(k_len))
        alike = isinstance(self.q_start, int) and not (
            pattern.varies_by_head or pattern.varies_by_row
        )
        if alike and (band := pattern.band()) is not None:
            assert isinstance(self.q_start, int)
            keys = band.key_range(self.q_start + rows[0], self.q_start + rows[-1], k_len)
            return (keys,) if keys else ()
        if alike and pattern.structured:
            return seen_keys(pattern, grid)
        visible = visible_keys(pattern, grid)
        return everything(k_len) if visible is None else true_runs(visible.flatten(0, 1).any(0))

    def between(self, target: int, source: int) -> tuple[Ranges, ...]:
        """The keys that `target` needs of each chunk of `source`."""
        return self.by_holder[target].get(source) or ((),) * len(self.k.chunks[source])

    def count(self, target: int, source: int) -> int:
        return sum(map(size, self.by_holder[target].get(source, ())))

    def sender(self, target: int, source: int, form: str) -> int:
        """The process that sends the keys of `source` to `target`.

        In a ring it is the process before `target` if that one needs all of these keys itself, and passes them on;
        otherwise it is `source`.
        """
        before = (target - 1) % self.processes
        if form != "ring" or before in (source, target):
            return source
        mine = self.between(target, source)
        its = self.between(before, source)
        return (
            before
            if all(common(one, other) == one for one, other in zip(mine, its, strict=True))
            else source
        )

    def rows_that_see(self, rows: range, keys: range) -> range:
        """The queries from the first to the last of `rows` that may look at some of `keys`; it may hold more."""
        start = self.q_start
        if not isinstance(start, int) or not self.pattern.structured:
            return rows

        def some(first: int, last: int) -> bool:
            return meets(
                self.pattern.segments(start + first, start + last, self.k.length).some, keys
            )

        first = _search(rows, some, backwards=False)
        last = _search(rows, some, backwards=True)
        return range(first, last + 1) if first is not None and last is not None else range(0)

    def keys_near(self, rows: range, keys: range) -> range:
        """The keys from the first to the last of `keys` that some of these queries may look at; it may hold more."""
        if not isinstance(self.q_start, int) or not self.pattern.structured:
            return keys
        near = self.pattern.key_range(
            self.q_start + rows[0], self.q_start + rows[-1], self.k.length
        )
        low = max(near.start, keys.start)
        return range(low, max(low, min(near.stop, keys.stop)))

    def form(self, asked: str) -> str:
        """The form of the exchange: the one that was asked for, or for "auto" the one that suits the sizes."""
        check_division(self.q.name, asked)
        if asked == "state":
            raise UnsupportedError(
                "form='state' exchanges sums of a fixed size and no keys; use it in attention"
            )
        if asked != "auto":
            return asked
        foreign = [
            sum(self.count(rank, other) for other in held if other != rank)
            for rank, held in enumerate(self.by_holder)
        ]
        narrow = all(
            count <= NARROW * own for count, own in zip(foreign, self.k.lengths, strict=True)
        )
        return "gather" if narrow else "ring"


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, q: Layout, k: Layout, q_start: int) -> Needs:
    return Needs(pattern, q, k, q_start)


def needs_of(pattern: Pattern, q: Layout, k: Layout, q_start: int | torch.Tensor) -> Needs:
    """The `Needs` of a call; those of patterns without tensors are kept for later calls, as plans are."""
    if isinstance(q_start, torch.Tensor) or not pattern.by_value:
        return Needs(pattern, q, k, q_start)
    return _kept(pattern, q, k, q_start)


def _search(rows: range, some: Callable[[int, int], bool], backwards: bool) -> int | None:
    """The first row (`backwards`: the last one) of a block that sees something, to within a block."""
    if not rows or not some(rows[0], rows[-1]):
        return None
    if len(rows) <= ROWS:
        return rows[-1] if backwards else rows[0]
    half = len(rows) // 2
    parts = (rows[half:], rows[:half]) if backwards else (rows[:half], rows[half:])
    found = _search(parts[0], some, backwards)
    return _search(parts[1], some, backwards) if found is None else found
