"""Patterns of chosen positions: sets of keys, sets of queries, and global tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch

from regard.arguments import in_memory, is_whole, number_in
from regard.exporting import exporting
from regard.patterns.algebra import NOTHING
from regard.patterns.arguments import positions, runs, spans, words
from regard.patterns.band import Band
from regard.patterns.base import Origins, Pattern
from regard.patterns.grid import common_shape
from regard.patterns.ranges import Ranges, Segments, common, covers, everything, hull, meets, union
from regard.patterns.registry import Reader
from regard.reprs import brief


@dataclass(frozen=True)
class PositionSet(Pattern, enrol=False):
    """A pattern of the positions of some ranges."""

    runs: Ranges

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", union(spans("runs", self.runs)))

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(reader.spans())

    def lattice_ends(self) -> set[int]:
        return set(_edges(self.runs))

    def on_lattice(self, stride: int, residue: int) -> Pattern:
        return type(self)(_on_lattice(self.runs, stride, residue))

    def __str__(self) -> str:
        return f"{self.text_name}({words(self.runs)})"


@dataclass(frozen=True)
class KeySet(PositionSet):
    """Every query may look at the keys of these ranges, and at no other.

    >>> KeySet((range(0, 1), range(2, 3))).dense(1, 4).int().tolist()
    [[1, 0, 1, 0]]
    """

    query_free = True
    compares_positions = False

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return _inside(self.runs, k_pos).expand(common_shape(q_pos.shape, k_pos.shape))

    def form(self) -> Band | None:
        if len(self.runs) > 1:
            return None
        keys = hull(self.runs)
        return Band(start=keys.start, stop=keys.stop)

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        keys = common(self.runs, everything(k_len))
        return Segments(keys, keys)


@dataclass(frozen=True)
class QuerySet(PositionSet):
    """The queries at the positions of these ranges may look at every key, the others at none.

    >>> QuerySet((range(1, 2),)).dense(2, 2).int().tolist()
    [[0, 0], [1, 1]]
    """

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return _inside(self.runs, q_pos).expand(common_shape(q_pos.shape, k_pos.shape))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        queries = range(first, last + 1)
        full = everything(k_len) if covers(self.runs, queries) else ()
        some = everything(k_len) if meets(self.runs, queries) else ()
        return Segments(full, some)


def _inside(runs: Ranges, positions: torch.Tensor) -> torch.Tensor:
    """Which positions lie in the ranges: those with an odd number of edges at or before them."""
    if exporting():  # not every runtime knows bucketize
        inside = [(positions >= run.start) & (positions < run.stop) for run in runs]
        return reduce(torch.logical_or, inside) if inside else positions < positions
    edges = torch.tensor(_edges(runs), dtype=torch.int64, device=positions.device)
    positions = in_memory("positions", positions).contiguous()
    return torch.bucketize(positions, edges, right=True) % 2 == 1


def _edges(runs: Ranges) -> list[int]:
    """The start and the stop of each range, one after the other."""
    edges = []
    for run in runs:
        edges += [run.start, run.stop]
    return edges


def _on_lattice(runs: Ranges, stride: int, residue: int) -> Ranges:
    """The n with `residue + stride · n` in the ranges."""
    numbers = []
    for run in runs:
        first = -((residue - run.start) // stride)  # rounded up
        end = -((residue - run.stop) // stride)
        numbers.append(range(first, end))
    return tuple(numbers)


@brief
@dataclass(frozen=True)
class GlobalTokens(Pattern):
    """A pair is allowed if the position of its query or of its key is one of `indices`.

    Args:
        indices: positions 0 and up, in any order: a list, a range, a tensor of numbers; or one position.

    Source: Longformer, Beltagy et al. 2020, section 3.1.

    >>> GlobalTokens([0]).dense(3, 3).int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    >>> str(GlobalTokens([0, *range(8, 64)]))
    'global_tokens(0, 8..63)'
    """

    indices: Iterable[int] | int

    def __post_init__(self) -> None:
        indices = number_in(self.indices)
        listed = [indices] if is_whole(indices) else indices
        object.__setattr__(self, "indices", positions("GlobalTokens", listed))

    @classmethod
    def read(cls, reader: Reader) -> GlobalTokens:
        return cls(reader.positions())

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        return self.structure().allows(q_pos, k_pos)

    def form(self) -> Pattern:
        chosen = self._runs()
        return QuerySet(chosen) | KeySet(chosen)

    def _moved(self, origins: Origins) -> Pattern | None:
        if isinstance(origins, torch.Tensor) or len(set(origins)) > 1:
            return None
        assert isinstance(self.indices, tuple)
        moved = [index + origins[0] for index in self.indices]
        indices = [index for index in moved if index >= 0]
        return GlobalTokens(indices) if indices else NOTHING

    def _runs(self) -> Ranges:
        assert isinstance(self.indices, tuple)
        return runs(self.indices)

    def __str__(self) -> str:
        return f"global_tokens({words(self._runs())})"
