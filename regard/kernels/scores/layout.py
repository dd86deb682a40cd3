"""Where a problem has scores: strips of query rows, cut into tiles of keys that stay in a core's cache.

A strip takes some neighbouring rows of all heads; its tiles cover the keys that one of those rows may see. Inside a
tile the heads come in parts, as many at a time as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from regard.patterns.ranges import Ranges, Segments, common, without
from regard.problem import PER_ROW, Problem

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
class Layout:
    """How large strips, tiles and parts of a problem are; `problem` is what they are cut from."""

    problem: Problem
    rows: int
    keys: int
    pairs: int  # of a part of a tile, at most, where one head fits

    @property
    def parts(self) -> list[Part]:
        """The heads, in lots that fit."""
        problem = self.problem
        fitting = max(1, self.pairs // (self.rows * problem.group * self.keys))
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
    def largest(self) -> int:
        """Pairs in the largest part of a tile."""
        units = max(
            ((p.batch.stop - p.batch.start) * (p.kv_heads.stop - p.kv_heads.start) for p in self.parts), default=0
        )
        return units * self.problem.group * self.rows * self.keys

    def strips(self, starts: tuple[int, int] | None, runs: Iterable[range] | None = None) -> Iterator[Strip]:
        """Strips in the order of their rows.

        Args:
            starts: the least and the largest q_start of the batch rows; None where they are not known yet.
            runs: the rows to cover; all of them unless given.
        """
        for run in [range(self.problem.q_len)] if runs is None else runs:
            for at in range(0, len(run), self.rows):
                yield self._strip(run[at : at + self.rows], starts)

    def size(self) -> tuple[int, int]:
        """Pairs computed over all heads, and in how many blocks; from a sample of the strips where there are many."""
        every = range(0, self.problem.q_len, self.rows)
        sample = every[:: -(-len(every) // SAMPLED)]
        starts = known_starts(self.problem)
        found = [self._strip(range(at, min(at + self.rows, self.problem.q_len)), starts) for at in sample]
        share = len(every) / len(sample) if sample else 1
        heads = self.problem.batch * self.problem.heads
        pairs, tiles = sum(strip.pairs for strip in found), sum(len(strip.tiles) for strip in found)
        return round(share * pairs) * heads, round(share * tiles) * len(self.parts)

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
        k_len = self.problem.k_len
        if starts is None:
            return Strip(rows, tuple(_cut([(range(k_len), False)], self.keys)))
        seen = self.problem.pattern.segments(starts[0] + rows.start, starts[1] + rows.stop - 1, k_len)
        whole = _inner(seen)
        partial = without(_joined(without(seen.some, whole)), whole)
        pieces = [(one, True) for one in common(whole, seen.some)] + [(one, False) for one in partial]
        return Strip(rows, tuple(_cut(sorted(pieces, key=lambda piece: piece[0].start), self.keys)))


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
