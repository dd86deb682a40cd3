"""What to compute, as plain values: strips of rows, residues of a lattice, and rows apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from regard.patterns import Grid
from regard.patterns.narrowing import Blocks
from regard.patterns.ranges import Ranges, size


@dataclass(frozen=True)
class Terms:
    """How to cut: strips of `rows`; `by_distance`: a bias tells distances apart, so strips are only alike where their
    keys stand alike too; `distance`: how far neighbours on a grid stand apart in the whole call."""

    rows: int
    by_distance: bool = False
    distance: int = 1

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
