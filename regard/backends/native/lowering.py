"""Turns a problem into the schedules that the kernel reads: one for each pattern that a batch row or head has.

A band is lowered without evaluating a pair: each row block has one run with the bounds of every row. Other patterns are
lowered by `Schedule.flat`. The panels in which the kernel adds up keys begin at the first key that any query of a text
could look at, wherever this call begins, so that a continued text and a padded one get equal bits.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from regard.backends.native.library import MOST_ROWS, CSchedule
from regard.backends.schedule import Flat, Schedule
from regard.core.problem import Problem
from regard.patterns import Pattern
from regard.patterns.band import Band
from regard.patterns.row_blocks import Kind

ROWS = 64  # of a row block in a pattern that is no band; more rows share few keys there


@dataclass(frozen=True, eq=False)
class Lowered:
    """The schedules of a call, as arrays and as the structs that point at them.

    schedules: the different ones, with the origin of their panels. schedule_of: (batch, heads) int32, which schedule;
    None if all batch rows and heads have the first.
    """

    schedules: list[tuple[Flat, int]]
    schedule_of: torch.Tensor | None

    @cached_property
    def structs(self) -> Any:
        """The array of rg_schedule."""
        return (CSchedule * len(self.schedules))(*(_struct(flat, origin) for flat, origin in self.schedules))

    @cached_property
    def address(self) -> int:
        """Of the structs."""
        return ctypes.addressof(self.structs)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        tensors = (x for flat, _ in self.schedules for x in (flat.blocks, flat.runs, flat.lo, flat.hi, flat.bits))
        return sum(x.nbytes for x in tensors)


def _struct(flat: Flat, origin: int) -> CSchedule:
    return CSchedule(
        len(flat.blocks), len(flat.runs), len(flat.lo), len(flat.bits), origin,
        *(x.data_ptr() for x in (flat.blocks, flat.runs, flat.lo, flat.hi, flat.bits)),
    )  # fmt: skip


@dataclass
class _Lowering:
    problem: Problem
    keys: range
    schedules: list[tuple[Flat, int]] = field(default_factory=list)
    known: dict[tuple[Pattern, int], int] = field(default_factory=dict)

    def number(self, pattern: Pattern, start: int) -> int:
        """The number of the schedule of a pattern whose first query stands at `start`."""
        name = pattern, start
        if name not in self.known:
            self.known[name] = len(self.schedules)
            self.schedules.append(self._schedule(pattern, start))
        return self.known[name]

    def _schedule(self, pattern: Pattern, start: int) -> tuple[Flat, int]:
        q_len, k_len = self.problem.q_len, self.problem.k_len
        origin = min(pattern.keys(0, k_len - 1, k_len).start, self.keys.start + k_len)
        if (band := pattern.band()) is not None:
            return flat_of_band(band, start, q_len, k_len, self.keys), origin
        return Schedule(pattern, q_len, k_len, (start, start), self.keys, ROWS).flat(), origin


def lower(problem: Problem, keys: range, starts: list[int]) -> Lowered:
    """The schedules of a problem.

    Args:
        problem: the call.
        keys: those that the tensors of the call hold.
        starts: the position of the first query in each batch row, or in all of them.
    """
    lowering, pattern = _Lowering(problem, keys), problem.pattern
    rows = range(problem.batch) if pattern.varies_by_row or len(starts) > 1 else range(1)
    heads = range(problem.heads) if pattern.varies_by_head else range(1)
    numbers = []
    for row in rows:
        own = pattern.for_row(row).canonical() if pattern.varies_by_row else pattern
        start = starts[row] if len(starts) > 1 else starts[0]
        numbers.append(
            [
                lowering.number(own.for_head(head).canonical() if pattern.varies_by_head else own, start)
                for head in heads
            ]
        )
    if len(lowering.schedules) == 1:
        return Lowered(lowering.schedules, None)
    table = torch.tensor(numbers, dtype=torch.int32, device="cpu").expand(problem.batch, problem.heads).contiguous()
    return Lowered(lowering.schedules, table)


def flat_of_band(band: Band, start: int, q_len: int, k_len: int, keys: range) -> Flat:
    """The schedule of a band in row blocks of the most rows, each with one run and the bounds of its rows."""
    low, high = max(keys.start, band.start or 0), min(keys.stop, k_len if band.stop is None else band.stop)
    blocks, runs = [], []
    for first in range(0, q_len, MOST_ROWS):
        end = min(first + MOST_ROWS, q_len)
        some = band.keys(start + first, start + end - 1, k_len)
        some = range(max(some.start, low), min(some.stop, high))
        if some:
            whole = band.sees_all(start + first, start + end - 1, some)
            runs.append((some.start, some.stop, Kind.WHOLE if whole else Kind.BOUNDED, first))
        blocks.append((first, end, len(runs) - bool(some), len(runs)))
    lo, hi = bounds_of_band(band, start, q_len, range(low, max(low, high)))
    none = torch.zeros(0, dtype=torch.int32, device="cpu")
    return Flat(_table(blocks), _table(runs), lo, hi, none)


def bounds_of_band(band: Band, start: int, q_len: int, keys: range) -> tuple[torch.Tensor, torch.Tensor]:
    """The first key and the end of the keys of each row, both int32 (q_len,), within `keys`; equal in an empty row."""
    position = torch.arange(start, start + q_len, device="cpu")
    lo, hi = (torch.full((q_len,), end, device="cpu") for end in (keys.start, keys.stop))
    if band.left is not None:
        lo = (position - band.left).clamp(keys.start, keys.stop)
    if band.right is not None:
        hi = (position + band.right + 1).clamp(keys.start, keys.stop)
    return lo.int(), torch.maximum(lo, hi).int()


def _table(rows: list[tuple[int, int, int, int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32, device="cpu").view(-1, 4)
