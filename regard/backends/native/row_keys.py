"""Schedules of calls whose batch rows have different keys, such as padded texts.

The native library writes them from the numbers and booleans of the pattern, so a new mask needs no new plan.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint32
from typing import Any

import torch

from regard.backends.native.filling import address_of, extent
from regard.backends.native.library import (
    ROWS_OF_BITS,
    CSchedule,
    CTensor,
    CVisible,
    Library,
    limit_of,
)
from regard.core.problem import Problem
from regard.patterns.row_keys import RowKeys, column, mask_of_pairs


class RowSchedules:
    """The schedules of all batch rows of a call, in the form in which `KernelCall` takes lowered patterns.

    They serve one call at a time: the next `write` replaces them.
    """

    lists: None = None
    windows: None = None

    def __init__(self, library: Library, problem: Problem) -> None:
        self._library = library
        self._batch = problem.batch
        self._heads = problem.heads
        self._q_len = problem.q_len
        self._visible = CVisible(q_len=problem.q_len)
        self._bits = (c_uint32 * 0)()
        self._make_room(problem.batch)
        self._position = c_int64()  # of the first query, where all batch rows have the same
        self._read: Any = None  # the tensors that C read last, kept alive while C points at them
        self._written: tuple[Any, ...] | None = None  # the arguments of the last `write`
        rows = torch.arange(problem.batch, dtype=torch.int32, device="cpu")
        self._schedule_of_row = rows.repeat_interleave(problem.heads)
        # Which schedule each batch row and head has, (batch · heads,); None if all have the first.
        self.schedule_of: torch.Tensor | None = None

    def _make_room(self, count: int) -> None:
        """Allocate memory for `count` schedules."""
        blocks = -(-self._q_len // ROWS_OF_BITS)
        self._room = count
        self._structs = (CSchedule * count)()
        self._blocks = (c_int32 * (count * blocks * 4))()
        self._runs = (c_int32 * (count * blocks * 4))()
        self._lo = (c_int32 * (count * self._q_len))()
        self._hi = (c_int32 * (count * self._q_len))()
        visible = self._visible
        visible.schedule = ctypes.addressof(self._structs)
        visible.block = ctypes.addressof(self._blocks)
        visible.run = ctypes.addressof(self._runs)
        visible.lo = ctypes.addressof(self._lo)
        visible.hi = ctypes.addressof(self._hi)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._structs)

    @property
    def schedule_count(self) -> int:
        """How many there are: one for each batch row and head, or one for all batch rows or heads that are alike."""
        return self._visible.rows * self._visible.heads

    def _numbers_of_schedules(self) -> torch.Tensor | None:
        rows = self._visible.rows
        if self._visible.heads == 1:
            return None if rows == 1 else self._schedule_of_row
        numbers = torch.arange(rows * self._heads, dtype=torch.int32, device="cpu")
        return numbers if rows > 1 else numbers.repeat(self._batch)

    def write(self, row_keys: RowKeys, k_len: int, q_start: int | torch.Tensor) -> None:
        """Write the schedules of a call, whose first query has the position q_start, or one for each batch row."""
        # `_read` keeps these row keys alive, so no other object can have their id.
        arguments = id(row_keys), k_len, q_start
        if type(q_start) is int and arguments == self._written:
            return
        self._written = None
        self._describe(row_keys, k_len, q_start)
        if self.schedule_count > self._room:
            self._make_room(self.schedule_count)
        self.schedule_of = self._numbers_of_schedules()

        visible = self._visible
        # How many words of bits the schedules need; without room for all of them the schedules are not complete.
        words = self._library.lower(visible)
        if words > len(self._bits):
            self._bits = (c_uint32 * words)()
            visible.bits = ctypes.addressof(self._bits)
            visible.words = words
            self._library.lower(visible)
        self._written = arguments

    def _describe(self, row_keys: RowKeys, k_len: int, q_start: int | torch.Tensor) -> None:
        """Write the addresses, strides and limits of the numbers and booleans of a call."""
        visible = self._visible
        positions = None
        if isinstance(q_start, torch.Tensor):
            positions = column(q_start)
        else:
            self._position.value = q_start
        self._read = row_keys, positions
        visible.keys = k_len
        self._describe_mask(row_keys.mask)
        visible.start = address_of(row_keys.starts)
        visible.start_row = _stride_of(row_keys.starts)
        visible.stop = address_of(row_keys.stops)
        visible.stop_row = _stride_of(row_keys.stops)
        visible.position = address_of(positions) or ctypes.addressof(self._position)
        visible.position_row = _stride_of(positions)
        visible.left = limit_of(row_keys.window.left)
        visible.right = limit_of(row_keys.window.right)
        differ = visible.mask_row or visible.start_row or visible.stop_row or visible.position_row
        visible.rows = self._batch if differ else 1

    def _describe_mask(self, mask: torch.Tensor | None) -> None:
        """Write the address and strides of the mask; the stride of an axis of size 1 is 0."""
        visible = self._visible
        visible.mask = address_of(mask)
        visible.mask_row = 0
        visible.heads = 1
        if mask is None:
            return
        mask = mask_of_pairs(mask)
        by_axis = zip(mask.shape, mask.stride(), strict=True)
        strides = [0 if size == 1 else stride for size, stride in by_axis]
        visible.mask_row, visible.mask_head, visible.mask_query, visible.mask_key = strides
        visible.mask_size = extent(mask)
        visible.heads = mask.shape[1]

    def hides_extreme(self, struct: CTensor, heads: int, dim: int, limit: float) -> bool:
        """Whether a number of a key that no query may look at is NaN or farther from 0 than the limit."""
        return self._library.hides_extreme(self._visible, struct, self._batch, heads, dim, limit)


def _stride_of(numbers: torch.Tensor | None) -> int:
    """The stride from the number of one batch row to the next; 0 if all share one number."""
    return 0 if numbers is None or numbers.shape[0] == 1 else 1
