"""A program: the calls that the tiled backend makes for a pattern, as plain values that know their cost."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from functools import cached_property

from regard.patterns import Grid
from regard.patterns.ranges import Ranges, size
from regard.patterns.row_blocks import Answers
from regard.patterns.survey import Budget

GATHERED = 16  # gathered row blocks whose cost equals that of one more call


@dataclass(frozen=True)
class Terms:
    """How to divide: `rows` of a row block, and a `budget` of row blocks to evaluate.

    `by_distance`: a bias depends on the distance, so row blocks are equal only if their keys have equal distances too.
    `distance`: the distance in the whole call between neighbours on the grid.
    """

    rows: int
    by_distance: bool = False
    distance: int = 1
    budget: Budget = field(default_factory=Budget)

    def farther(self, stride: int) -> Terms:
        """The same terms for every stride-th position."""
        return replace(self, distance=self.distance * stride)


@dataclass(frozen=True, eq=False)
class Group:
    """Row blocks that share a mask and are computed by one call; `rows` and `keys` are those of the first.

    Row block t is the first one with rows and keys moved by t row blocks; if there are `members` it is `members[t]`.
    `whole`: all pairs are allowed.
    """

    rows: Ranges
    keys: Ranges
    whole: bool
    count: int = 1
    members: tuple[tuple[Ranges, Ranges], ...] = ()

    @property
    def pairs(self) -> int:
        return size(self.rows) * size(self.keys) * self.count

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return size(self.keys) * self.count if self.members else 0

    @property
    def calls(self) -> int:
        return 1 + self.count // GATHERED if self.members else 1


@dataclass(frozen=True)
class Residues:
    """Neighbouring equal residues: residue r has row `first + r` and every `stride`-th row after it; keys likewise."""

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

    @property
    def calls(self) -> int:
        return self.inner.calls if self.kind == "program" else 1


@dataclass(frozen=True)
class Work:
    """The work of a program: pairs computed, calls, keys copied, and the number of merged strides."""

    pairs: int
    calls: int
    gathered: int
    merges: int

    def __add__(self, other: Work) -> Work:
        return Work(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class Program:
    """The calls over one grid: groups, residues of each stride, and separate rows.

    `answers` evaluate the pattern of the groups, and `whole` the whole pattern, for the separate rows. `distance`: the
    distance in the call between neighbours on the grid.
    """

    answers: Answers
    grid: Grid
    groups: tuple[Group, ...] = ()
    residues: tuple[Residues, ...] = ()
    apart: tuple[Group, ...] = ()
    whole: Answers | None = None
    distance: int = 1

    @property
    def pairs(self) -> int:
        return sum(part.pairs for part in (*self.groups, *self.residues, *self.apart))

    @property
    def calls(self) -> int:
        return len(self.apart) + sum(part.calls for part in (*self.groups, *self.residues))

    @property
    def gathered(self) -> int:
        """Keys that are copied."""
        return sum(group.gathered for group in self.groups)

    @property
    def work(self) -> Work:
        """What computing it costs."""
        return Work(self.pairs, self.calls, self.gathered, len(self.residues))

    @cached_property
    def covers_rows(self) -> bool:
        """Whether the groups compute every row of the grid."""
        return sum(size(group.rows) * group.count for group in self.groups) == self.grid.q_len
