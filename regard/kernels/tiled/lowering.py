"""From a pattern's structure to a few dense calls.

    rows apart    queries that look further than their neighbours (global tokens) are taken out and computed alone
    lattices      what depends on a residue (strided, dilated) is dense among every stride-th position
    strips        the rest: neighbouring queries over the runs of keys that they see; strips that are alike make one
                  call, over windows in place where each strip's keys are one run, over gathered keys where they are not

These share no pair, so the parts are merged by their log-sum-exp. Nothing here reads a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING, Many, Not
from regard.patterns.full import Full
from regard.patterns.lattice import Lattice
from regard.patterns.narrowing import Blocks
from regard.patterns.position_sets import QuerySet
from regard.patterns.ranges import Ranges, common, covers, size, union, without

APART_ROWS = 256  # at most in one call
RESIDUE_PAIRS = 1 << 20  # of a residue whose pairs are all computed, with a mask if need be


@dataclass(frozen=True)
class Look:
    """Some runs of rows over some runs of keys; `sure`: all of the pairs are allowed."""

    rows: Ranges
    keys: Ranges
    sure: bool

    @property
    def pairs(self) -> int:
        return size(self.rows) * size(self.keys)


@dataclass(frozen=True, eq=False)
class Strips:
    """`count` equal strips that share the mask of the one in `look`.

    Strip t is that one moved by t strips, keys and all, or else stands where row_index (count, rows) and key_index
    (count, keys) say.
    """

    look: Look
    count: int
    row_index: torch.Tensor | None = None
    key_index: torch.Tensor | None = None

    @property
    def steady(self) -> bool:
        return self.row_index is None

    @property
    def pairs(self) -> int:
        return self.look.pairs * self.count


@dataclass(frozen=True)
class Lattices:
    """Neighbouring residues, all alike: row `first + r` and each `stride`-th one after it, over the keys likewise."""

    stride: int
    count: int
    first: int
    size: int
    first_key: int
    width: int
    kind: str  # "all", "causal", "masked", or "program"
    inner: Program

    @property
    def pairs(self) -> int:
        return self.count * (self.inner.pairs if self.kind == "program" else self.size * self.width)


@dataclass(frozen=True)
class Program:
    """What to compute over one grid; `distance` is how far neighbours on it stand apart in the whole call."""

    blocks: Blocks
    grid: Grid
    strips: tuple[Strips, ...]
    lattices: tuple[Lattices, ...] = ()
    apart: tuple[Look, ...] = ()
    whole: Blocks | None = field(default=None)  # answers for the rows apart
    distance: int = 1

    @property
    def pairs(self) -> int:
        return sum(part.pairs for part in (*self.strips, *self.lattices, *self.apart))

    @property
    def calls(self) -> int:
        nested = sum(part.inner.calls if part.kind == "program" else 1 for part in self.lattices)
        return len(self.apart) + nested + sum(1 if part.steady else 1 + part.count // 16 for part in self.strips)

    @property
    def strip_rows(self) -> int:
        """Rows that some strip computes."""
        return sum(size(part.look.rows) * part.count for part in self.strips)

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return sum(size(part.look.keys) * part.count for part in self.strips if not part.steady)


def lower(pattern: Pattern, grid: Grid, rows: int, by_distance: bool = False, distance: int = 1) -> Program:
    """The program for a pattern that is alike for all batch rows and heads, in strips of `rows`.

    `by_distance`: a bias tells distances apart, so strips are only alike where their keys stand alike too.
    """
    pattern = simplified(pattern)
    apart = _rows_apart(pattern, grid)
    rest = _replaced(pattern, QuerySet, NOTHING).canonical() if apart else pattern
    lattices: list[Lattices] = []
    for stride in _strides(rest):
        off = _replaced(rest, Lattice, NOTHING, stride).canonical()
        on = _replaced(rest, Lattice, Full(), stride) & ~off
        found = _on_lattice(on, stride, grid, rows, by_distance, distance)
        if found is not None:
            lattices += found
            rest = off
    blocks = Blocks(rest, grid)
    strips = _strips(blocks, rows, by_distance)
    alone = _apart_looks(pattern, grid, apart)
    return Program(blocks, grid, strips, tuple(lattices), alone, Blocks(pattern, grid), distance)


def simplified(pattern: Pattern) -> Pattern:
    """The pattern in terms of its simplest parts."""
    simpler = pattern.structure()
    while simpler is not pattern:
        pattern, simpler = simpler, simpler.structure()
    return pattern.canonical()


def _leaves(pattern: Pattern) -> list[Pattern]:
    if isinstance(pattern, Many):
        return [leaf for part in pattern.parts for leaf in _leaves(part)]
    return _leaves(pattern.part) if isinstance(pattern, Not) else [pattern]


def _replaced(pattern: Pattern, kind: type[Pattern], by: Pattern, stride: int | None = None) -> Pattern:
    """The pattern with the leaves of a kind (lattices: of one stride) replaced."""

    def change(part: Pattern) -> Pattern:
        if isinstance(part, Many | Not):
            return part.mapped(change)
        if isinstance(part, kind) and stride in (None, getattr(part, "stride", None)):
            return by
        return part

    return change(pattern)


def _rows_apart(pattern: Pattern, grid: Grid) -> Ranges:
    """Rows whose queries some part of the pattern names."""
    assert isinstance(grid.q_start, int)
    named = union(run for leaf in _leaves(pattern) if isinstance(leaf, QuerySet) for run in leaf.runs)
    rows = tuple(range(run.start - grid.q_start, run.stop - grid.q_start) for run in named)
    return common(rows, (grid.rows,))


def _apart_looks(pattern: Pattern, grid: Grid, apart: Ranges) -> tuple[Look, ...]:
    """The rows apart, those that stand together together, the others gathered, a few hundred at a time."""
    assert isinstance(grid.q_start, int)
    waiting: list[range] = []
    looks: list[Look] = []
    for run in apart:
        for at in range(run.start, run.stop, APART_ROWS):
            waiting.append(range(at, min(run.stop, at + APART_ROWS)))
            if size(tuple(waiting)) >= APART_ROWS:
                looks.append(_look_apart(pattern, grid, tuple(waiting)))
                waiting = []
    return tuple([*looks, _look_apart(pattern, grid, tuple(waiting))] if waiting else looks)


def _look_apart(pattern: Pattern, grid: Grid, rows: Ranges) -> Look:
    assert isinstance(grid.q_start, int)
    seen = [pattern.segments(grid.q_start + run.start, grid.q_start + run.stop - 1, grid.k_len) for run in rows]
    keys = union(keys for one in seen for keys in one.some)
    sure = all(covers(one.full, run) for one in seen for run in keys)
    return Look(rows, keys, sure)


def _strides(pattern: Pattern) -> list[int]:
    """Of the lattices that only ever add pairs; what one takes away is left to the masks."""
    added, taken = set(), set()

    def look(part: Pattern, negated: bool) -> None:
        if isinstance(part, Many):
            for one in part.parts:
                look(one, negated)
        elif isinstance(part, Not):
            look(part.part, not negated)
        elif isinstance(part, Lattice) and part.stride > 1:
            (taken if negated else added).add(part.stride)

    look(pattern, False)
    return sorted(added - taken)


def _on_lattice(
    pattern: Pattern, stride: int, grid: Grid, rows: int, by_distance: bool, distance: int
) -> list[Lattices] | None:
    """The pattern on each residue of a lattice, equal neighbours together; None where it cannot be said there."""
    assert isinstance(grid.q_start, int)
    found: list[tuple[Hashable, Lattices]] = []
    there = None
    for at in range(min(stride, grid.q_len)):
        row = at
        residue = (grid.q_start + row) % stride
        if there is None or pattern.period != 1:  # else every residue sees the same
            there = pattern.on_lattice(stride, residue)
            if there is None:
                return None
            there = there.canonical()
        key = grid.keys.start + (residue - grid.keys.start) % stride
        if there == NOTHING or key >= grid.keys.stop:
            continue
        size, width = (-(-(stop - first) // stride) for first, stop in ((row, grid.q_len), (key, grid.keys.stop)))
        start, first_key = (grid.q_start + row - residue) // stride, (key - residue) // stride
        blind, width = _trimmed(there, start, size, range(first_key, first_key + width))
        if not width:
            continue
        row, start, size = row + blind * stride, start + blind, size - blind
        name = (there, start, first_key, size, width)
        if found and found[-1][0] == name and _next(found[-1][1], row, key - grid.keys.start):
            last = found[-1][1]
            found[-1] = name, Lattices(**{**last.__dict__, "count": last.count + 1})
        else:
            keys = range(first_key, first_key + width)
            inner = Grid(size, keys.stop, start, range(size), keys, grid.device)
            part = _residue(there, inner, rows, by_distance, distance * stride)
            place = {"first": row, "size": size, "first_key": key - grid.keys.start, "width": width}
            found.append((name, Lattices(stride, 1, **place, kind=part[0], inner=part[1])))
    return [part for _, part in found]


def _trimmed(pattern: Pattern, start: int, size: int, keys: range) -> tuple[int, int]:
    """The first queries that see nothing, and the keys up to the last that is seen, of a pattern open to the left."""
    band = pattern.band()
    if band is None or band.right is None or band.left is not None:
        return 0, len(keys)
    blind = max(0, keys.start - (start + band.right))
    seen = min(len(keys), start + size + band.right - keys.start)
    return (blind, seen) if blind < size and seen > 0 else (0, 0)


def _next(last: Lattices, row: int, key: int) -> bool:
    return row == last.first + last.count and key == last.first_key + last.count


def _residue(pattern: Pattern, grid: Grid, rows: int, by_distance: bool, distance: int) -> tuple[str, Program]:
    """How a residue is computed, and the program that knows its pairs."""
    assert isinstance(grid.q_start, int)
    dense = Program(Blocks(pattern, grid), grid, (), distance=distance)
    if pattern.sees_all(grid.q_start, grid.q_start + grid.q_len - 1, grid.keys):
        return "all", dense
    band = pattern.band()
    if band is not None and band.right is not None and grid.q_len == len(grid.keys):
        cut = band.left is not None or band.stop is not None or (band.start or 0) > grid.keys.start
        if not cut and grid.q_start + band.right == grid.keys.start:
            return "causal", dense
    program = lower(pattern, grid, rows, by_distance, distance)
    pairs = grid.q_len * len(grid.keys)
    if pairs <= RESIDUE_PAIRS and pairs <= 4 * program.pairs:
        return "masked", dense
    return "program", program


def _strips(blocks: Blocks, rows: int, by_distance: bool) -> tuple[Strips, ...]:
    """The rows of a grid in strips, those that are alike together."""
    pattern, grid = blocks.pattern, blocks.grid
    if pattern == NOTHING:
        return ()
    done: list[Strips] = []
    pools: dict[Hashable, list[Look]] = {}
    run: list[Look] = []
    run_name: Hashable = None
    skip = _skipper(pattern, grid, rows)

    def close(more: int = 0) -> None:
        nonlocal run
        if len(run) + more >= 2:
            done.append(Strips(run[0], len(run) + more))
        elif run:
            pools.setdefault(run_name, []).append(run[0])
        run = []

    at = 0
    while at < grid.q_len:
        strip = range(at, min(at + rows, grid.q_len))
        look, name = _looked(blocks, strip, by_distance)
        at = strip.stop
        if not look.keys:
            close()
            continue
        if len(look.keys) > 1:
            close()
            pools.setdefault(name, []).append(look)
            continue
        if run and not (name == run_name and look.keys[0].start == run[-1].keys[0].start + rows):
            close()
        run_name = name
        run.append(look)
        if len(run) == 2 and (more := skip(look)):
            at += more * rows
            close(more)
    close()
    for alike, looks in pools.items():
        shared = None not in alike  # type: ignore[operator]
        done += [_pooled(looks, grid)] if shared else [_pooled([look], grid) for look in looks]
    return tuple(done)


def _pooled(looks: list[Look], grid: Grid) -> Strips:
    """Strips that stand anywhere; a single one over one run of keys needs no gathering."""
    if len(looks) == 1 and len(looks[0].keys) == 1:
        return Strips(looks[0], 1)
    rows, keys = (torch.stack([numbers(ranges) for ranges in each]) for each in zip(*_runs(looks), strict=True))
    return Strips(looks[0], len(looks), rows, keys - grid.keys.start)


def _runs(looks: list[Look]) -> list[tuple[Ranges, Ranges]]:
    return [(look.rows, look.keys) for look in looks]


def numbers(ranges: Ranges) -> torch.Tensor:
    """The positions themselves."""
    return torch.cat([torch.arange(one.start, one.stop, dtype=torch.int32) for one in ranges])


def _looked(blocks: Blocks, strip: range, by_distance: bool) -> tuple[Look, tuple[Hashable, ...]]:
    """The keys of a strip, and a name that equal strips share; None stands in it for what equals nothing."""
    grid = blocks.grid
    assert isinstance(grid.q_start, int)
    seen = blocks.pattern.segments(grid.q_start + strip.start, grid.q_start + strip.stop - 1, grid.k_len)
    partial = without(seen.some, seen.full)
    one_run = len(seen.some) == 1
    parts = (*seen.full, *partial)  # gathered keys may stand in any order: those that need no mask come first
    name: list[Hashable] = [len(strip), one_run, size(seen.full)]
    for part in sorted(parts, key=lambda part: part.start) if one_run or by_distance else partial:
        name.append(len(part))
        name.append(blocks.identity(strip, part) if part in partial else Full())
        name.append(part.start - strip.start if by_distance else 0)
    return Look((strip,), seen.some if one_run else parts, not partial), tuple(name)


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
