"""Neighbouring queries over the runs of keys that they see; strips that are alike become one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from regard.kernels.tiled.program import Look, Strips, Terms
from regard.patterns import Full, Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.ranges import common, size, without
from regard.patterns.row_blocks import Answers as Blocks


def in_strips(blocks: Blocks, terms: Terms) -> tuple[Strips, ...]:
    """The rows of a grid in strips, those that are alike together."""
    pattern, grid, rows = blocks.pattern, blocks.grid, terms.rows
    sorting = _Sorting(grid, _skipper(pattern, grid, rows))
    at = 0 if pattern != NOTHING else grid.q_len
    while at < grid.q_len:
        strip = range(at, min(at + rows, grid.q_len))
        look, name = looked(blocks, strip, terms.by_distance)
        terms.budget.spend(len(look.keys))
        at = strip.stop + sorting.take(look, name) * rows
    return sorting.done()


class _Sorting:
    """Strips as they come: steady runs are counted, the others wait in pools of their like."""

    def __init__(self, grid: Grid, skip: Callable[[Look], int]) -> None:
        self.grid, self.skip = grid, skip
        self.runs: list[Strips] = []
        self.pools: dict[tuple[Hashable, ...], list[Look]] = {}
        self.first: Look | None = None  # of the run that goes on
        self.last: Look | None = None
        self.name: tuple[Hashable, ...] = ()
        self.count = 0

    def take(self, look: Look, name: tuple[Hashable, ...]) -> int:
        """Sort one strip; how many strips behind it are known to go on like it."""
        if len(look.keys) != 1:
            self._end()
            if look.keys:
                self.pools.setdefault(name, []).append(look)
            return 0
        if self.last is None or name != self.name or not goes_on(self.last, look):
            self._end()
            self.first, self.name = look, name
        self.last = look
        self.count += 1
        if self.count != 2 or not (more := self.skip(look)):
            return 0
        self.count += more
        self._end()
        return more

    def done(self) -> tuple[Strips, ...]:
        """All that was taken."""
        self._end()
        return (*self.runs, *(_pooled(looks) for looks in self.pools.values()))

    def _end(self) -> None:
        if self.first is not None and self.count > 1:
            self.runs.append(Strips(self.first, self.count))
        elif self.first is not None:
            self.pools.setdefault(self.name, []).append(self.first)
        self.first = self.last = None
        self.count = 0


def goes_on(before: Look, look: Look) -> bool:
    """Does a strip over one run of keys stand by its rows as the strip before it does?"""
    return look.keys[0].start - before.keys[0].start == look.rows[0].start - before.rows[0].start


def _pooled(looks: list[Look]) -> Strips:
    """Strips that stand anywhere; a single one over one run of keys needs no gathering."""
    if len(looks) == 1 and len(looks[0].keys) == 1:
        return Strips(looks[0], 1)
    return Strips(looks[0], len(looks), tuple(looks))


def looked(blocks: Blocks, strip: range, by_distance: bool) -> tuple[Look, tuple[Hashable, ...]]:
    """The keys of a strip, and a name that equal strips share; what equals nothing has an object of its own in it."""
    grid = blocks.grid
    assert isinstance(grid.q_start, int)
    seen = blocks.pattern.segments(grid.q_start + strip.start, grid.q_start + strip.stop - 1, grid.k_len)
    full, some = (common(keys, (grid.keys,)) for keys in (seen.full, seen.some))  # rows apart may have reached less
    partial = without(some, full)
    one_run = len(some) == 1
    parts = (*full, *partial)  # gathered keys may stand in any order: those that need no mask come first
    name: list[Hashable] = [len(strip), one_run, size(full)]
    for part in sorted(parts, key=lambda part: part.start) if one_run or by_distance else partial:
        name.append(len(part))
        name.append((blocks.identity(strip, part) or object()) if part in partial else Full())
        name.append(part.start - strip.start if by_distance else 0)
    return Look((strip,), some if one_run else parts, not partial), tuple(name)


def _skipper(pattern: Pattern, grid: Grid, rows: int) -> Callable[[Look], int]:
    """How many strips after a steady one are steady too, where the pattern says so without a look."""
    band = pattern.band()
    if band is None and (pattern.period is None or rows % pattern.period):
        return lambda look: 0
    end = grid.keys.stop if band is None or band.stop is None else min(grid.keys.stop, band.stop)

    def skip(look: Look) -> int:
        keys = (end - look.keys[-1].stop) // rows
        return max(0, min(keys, (grid.q_len - look.rows[0].stop) // rows))

    return skip
