"""Where a problem has scores: strips of query rows, cut into tiles of keys that stay in a core's cache.

A strip takes some neighbouring rows of all heads; its tiles cover the keys that one of those rows may see. Inside a
tile the heads come in parts, as many at a time as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from regard.core.problem import PER_ROW, Problem
from regard.patterns.ranges import Ranges, Segments, common, without
from regard.patterns.survey import estimated, look_cost, turning_rows

ROWS = 256  # of a strip, the query heads of a group together
PAIRS = 1 << 17  # of one part of a tile on CPU: 512 KiB of scores in float32; there are two or three such workspaces
PAIRS_ELSEWHERE = 1 << 22  # where launching costs more than memory
ALIGNED = 64  # keys; tiles begin where rows of scores are aligned
SAMPLED = 256  # strips looked at to tell the cost of more


@dataclass(frozen=True)
class Tile:
    """Some keys; `whole` means that every row of the strip sees all of them."""

    keys: range
    whole: bool


@dataclass(frozen=True)
class Strip:
    """Some rows and the tiles that hold every key one of them sees."""

    rows: range
    tiles: tuple[Tile, ...]

    @property
    def pairs(self) -> int:
        return len(self.rows) * sum(len(tile.keys) for tile in self.tiles)


@dataclass(frozen=True)
class Part:
    """Some batch rows with all their key/value heads, or some key/value heads of one batch row."""

    batch: slice
    kv_heads: slice


@dataclass(frozen=True)
class Size:
    """Pairs computed and the blocks they are computed in; `exact` is False where a sample of the strips told them."""

    pairs: int
    blocks: int
    exact: bool


@dataclass(frozen=True)
class Layout:
    """How large strips, tiles and parts of a problem are; `problem` is what they are cut from."""

    problem: Problem
    rows: int
    keys: int
    pairs: int  # of a part of a tile, at most, where one head fits

    @property
    def parts(self) -> list[Part]:
        """The heads, in lots that fit."""
        problem, fitting = self.problem, self._fitting
        if fitting >= problem.kv_heads:
            step = fitting // problem.kv_heads
            every = slice(0, problem.kv_heads)
            return [Part(slice(at, min(at + step, problem.batch)), every) for at in range(0, problem.batch, step)]
        return [
            Part(slice(row, row + 1), slice(at, min(at + fitting, problem.kv_heads)))
            for row in range(problem.batch)
            for at in range(0, problem.kv_heads, fitting)
        ]

    @property
    def part_count(self) -> int:
        """How many `parts` there are."""
        batch, heads = self.problem.batch, self.problem.kv_heads
        if self._fitting >= heads:
            return -(-batch // (self._fitting // heads))
        return batch * -(-heads // self._fitting)

    @property
    def _fitting(self) -> int:
        """Key/value heads of a part, of several batch rows together where they are more than one has."""
        return max(1, self.pairs // (self.rows * self.problem.group * self.keys))

    @property
    def largest(self) -> int:
        """Pairs in the largest part of a tile."""
        batch, heads = self.problem.batch, self.problem.kv_heads
        units = min(self._fitting // heads, batch) * heads if self._fitting >= heads else min(self._fitting, heads)
        return units * self.problem.group * self.rows * self.keys if batch else 0

    def strips(self, starts: tuple[int, int] | None, runs: Iterable[range] | None = None) -> Iterator[Strip]:
        """Strips in the order of their rows.

        Args:
            starts: the least and the largest q_start of the batch rows; None where they are not known yet.
            runs: the rows to cover; all of them unless given.
        """
        for run in [range(self.problem.q_len)] if runs is None else runs:
            for at in range(0, len(run), self.rows):
                yield self._strip(run[at : at + self.rows], starts)

    def size(self) -> Size:
        """Pairs computed over all heads, and in how many blocks; from a sample of the strips where there are many."""
        problem, starts = self.problem, known_starts(self.problem)
        strips = -(-problem.q_len // self.rows)
        heads, parts = problem.batch * problem.heads, self.part_count

        def look(at: int) -> tuple[int, int]:
            rows = range(at * self.rows, min((at + 1) * self.rows, problem.q_len))
            pieces = self._pieces(rows, starts)
            tiles = sum(-(-len(keys) // self.keys) for keys, _ in pieces)
            return len(rows) * sum(len(keys) for keys, _ in pieces), tiles

        if problem.outlined and strips > SAMPLED and starts is not None:
            met = turning_rows(problem.pattern, starts[0], problem.q_len, problem.k_len)
            pairs, tiles = estimated(strips, look, (row // self.rows for row in met), self._look_cost())
            return Size(pairs * heads, tiles * parts, exact=False)
        sample = range(0, strips, -(-strips // SAMPLED)) if strips else range(0)
        found = [look(at) for at in sample]
        share = strips / len(sample) if sample else 1
        pairs, tiles = sum(one[0] for one in found), sum(one[1] for one in found)
        return Size(round(share * pairs) * heads, round(share * tiles) * parts, exact=len(sample) == strips)

    def _look_cost(self) -> int:
        middle = self.problem.q_len // 2
        return look_cost(len(self._pieces(range(middle, middle + self.rows), known_starts(self.problem))))

    def reason_against_strict(self, pairs: int) -> str | None:
        """Why computing so many pairs is more than `strict=True` allows, or None."""
        kept = self.problem.kept_pairs
        if kept is None:
            return (
                f"strict=True, and how many of its {pairs} pairs {self.problem.pattern} keeps is not known beforehand"
            )
        if pairs <= 2 * kept:
            return None
        return f"strict=True, and it computes {pairs} pairs where {kept} are kept, more than twice as many"

    def _strip(self, rows: range, starts: tuple[int, int] | None) -> Strip:
        return Strip(rows, tuple(_cut(self._pieces(rows, starts), self.keys)))

    def _pieces(self, rows: range, starts: tuple[int, int] | None) -> list[tuple[range, bool]]:
        """Runs of keys that a strip looks at, in order, and whether every row sees all of one."""
        k_len = self.problem.k_len
        if starts is None:
            return [(range(k_len), False)]
        seen = self.problem.pattern.segments(starts[0] + rows.start, starts[1] + rows.stop - 1, k_len)
        whole = _inner(seen)
        partial = without(_joined(without(seen.some, whole)), whole)
        pieces = [(one, True) for one in common(whole, seen.some)] + [(one, False) for one in partial]
        return sorted(pieces, key=lambda piece: piece[0].start)


def lay_out(problem: Problem, wide: bool = False, pairs: int | None = None) -> Layout:
    """Sizes for a problem; `wide` trades rows for keys, which suits work that is done once for each row of a tile.

    A part of a tile has about as many `pairs`; by default so many that they stay in the cache.
    """
    if pairs is None:
        pairs = PAIRS if problem.device == "cpu" else PAIRS_ELSEWHERE
    rows = max(1, (ROWS // 2 if wide else ROWS) // problem.group)
    rows = max(1, min(rows, problem.q_len))
    keys = max(ALIGNED, pairs // (rows * problem.group) // ALIGNED * ALIGNED)
    return Layout(problem, rows, max(1, min(keys, problem.k_len)), pairs)


def known_starts(problem: Problem) -> tuple[int, int] | None:
    """The least and largest q_start of the batch rows, where the problem knows them."""
    return None if problem.q_start is PER_ROW else (problem.q_start, problem.q_start)


def _inner(seen: Segments) -> Ranges:
    """What all rows see, with every end moved inward to an aligned key where something else begins."""
    ends = {end for one in seen.some for end in (one.start, one.stop)}
    inner = (
        range(
            one.start if one.start in ends else -(-one.start // ALIGNED) * ALIGNED,
            one.stop if one.stop in ends else one.stop // ALIGNED * ALIGNED,
        )
        for one in seen.full
    )
    return tuple(one for one in inner if one)


def _joined(ranges: Ranges) -> Ranges:
    """Neighbours with a gap that is not worth a call of its own become one."""
    found: list[range] = list(ranges[:1])
    for before, one in pairwise(ranges):
        if one.start - before.stop < ALIGNED:
            found[-1] = range(found[-1].start, one.stop)
        else:
            found.append(one)
    return tuple(found)


def _cut(pieces: Iterable[tuple[range, bool]], size: int) -> Iterator[Tile]:
    for keys, whole in pieces:
        for at in range(0, len(keys), size):
            yield Tile(keys[at : at + size], whole)
