"""What to compute, as plain values: strips of rows, residues of a lattice, and rows apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from regard.patterns import Grid
from regard.patterns.ranges import Ranges, size
from regard.patterns.row_blocks import Answers as Blocks
from regard.patterns.survey import Budget


@dataclass(frozen=True)
class Terms:
    """How to cut: strips of `rows`; `by_distance`: a bias tells distances apart, so strips are only alike where their
    keys stand alike too; `distance`: how far neighbours on a grid stand apart in the whole call; `budget`: of looks."""

    rows: int
    by_distance: bool = False
    distance: int = 1
    budget: Budget = field(default_factory=Budget)

    def farther(self, stride: int) -> Terms:
        """The same on every stride-th position."""
        return replace(self, distance=self.distance * stride)


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

    Strip t is that one moved by t strips, keys and all, or else it is the t-th of `looks`, which stand anywhere.
    """

    look: Look
    count: int
    looks: tuple[Look, ...] = ()

    @property
    def steady(self) -> bool:
        return not self.looks

    @cached_property
    def row_index(self) -> torch.Tensor:
        """Where the rows of strips that stand anywhere are, (count, rows); made when they are run."""
        return torch.stack([numbers(look.rows) for look in self.looks])

    @cached_property
    def key_index(self) -> torch.Tensor:
        """Likewise their keys, (count, keys)."""
        return torch.stack([numbers(look.keys) for look in self.looks])

    @property
    def pairs(self) -> int:
        return self.look.pairs * self.count


def numbers(ranges: Ranges) -> torch.Tensor:
    """The positions themselves."""
    return torch.cat([torch.arange(one.start, one.stop, dtype=torch.int32, device="cpu") for one in ranges])


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
class Work:
    """What a program costs: pairs computed, calls, keys copied, and how many lattices are merged."""

    pairs: int
    calls: int
    gathered: int
    lattices: int

    def __add__(self, other: Work) -> Work:
        return Work(
            self.pairs + other.pairs, self.calls + other.calls, self.gathered + other.gathered,
            self.lattices + other.lattices,
        )  # fmt: skip


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
    def work(self) -> Work:
        """What computing it costs."""
        return Work(self.pairs, self.calls, self.gathered, len(self.lattices))

    @property
    def strip_rows(self) -> int:
        """Rows that some strip computes."""
        return sum(size(part.look.rows) * part.count for part in self.strips)

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return sum(size(part.look.keys) * part.count for part in self.strips if not part.steady)
