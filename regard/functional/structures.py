"""Plans that are shared by calls whose patterns differ only in the keys of batch rows, such as padding.

One plan is made for each structure of a pattern, as if every batch row could look at every key. The kernel then reads
the numbers and booleans of each call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from regard.backends import BACKENDS
from regard.core.backend import Operands
from regard.core.call import LOOKUP_ERRORS, Call
from regard.core.hidden import CallGrid, looks_sound
from regard.core.newest import Newest
from regard.core.plan import Plan, make_plan
from regard.core.result import Result
from regard.core.shaped import has_no_values
from regard.core.tensors import Stored
from regard.errors import RegardError
from regard.patterns import Pattern
from regard.patterns.band import EVERY_PAIR
from regard.patterns.bands import with_every_key
from regard.patterns.grid import Grid
from regard.patterns.row_keys import RowKeys

KEPT_GRIDS = 64
# For a mask inside a window the kernel writes a bit for each pair, 64 MiB at most. A larger call needs its own plan.
MOST_BITS = 1 << 29
READS_ROW_KEYS = "native"  # the backend that reads the keys of batch rows from the operands


@dataclass(eq=False)
class StructurePlan:
    """One plan for calls that differ only in k_len, q_start and the keys of batch rows."""

    plan: Plan
    _grids: Newest[CallGrid] = field(default_factory=lambda: Newest(KEPT_GRIDS))

    def compute(self, call: Call) -> Result | None:
        """The result of a call that has this plan's structure and sizes; None if the call needs a plan of its own.

        It needs one if its mask is not one that `_fits`, if a cache dropped keys, or if a number that is not finite
        could have reached queries that may not look at it.
        """
        if not self.serves(call):
            return None
        pattern = call.pattern
        assert isinstance(pattern, Pattern)
        result = self.plan.compute_row_keys(call, pattern, self.grid_of(call))
        return result if looks_sound(result) else None

    def compute_tensors(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        q_start: int | None,
    ) -> Result | None:
        """What `compute` returns for a call of plain tensors, if the plan `takes_tensors_alone`.

        Each layer calls it in each step of training, so it calls as few functions as it can.
        """
        row_keys = pattern.row_keys
        assert row_keys is not None
        q_len = q.shape[2]
        k_len = k.shape[2]
        if not _fits(row_keys, q_len, k_len):
            return None
        grid = self._grid(q_len, k_len, q_start).grid
        result = self.plan.run_operands(Operands(q, k, v, None, grid, 0, pattern=pattern))
        return result if looks_sound(result) else None

    def serves(self, call: Call) -> bool:
        """Whether the plan computes a call with this structure, whatever its numbers are."""
        if isinstance(call.k, Stored) and call.k.first:
            return False
        pattern = call.pattern
        assert isinstance(pattern, Pattern)
        assert pattern.row_keys is not None
        return _fits(pattern.row_keys, call.q.shape[2], call.k.shape[2])

    def grid_of(self, call: Call) -> CallGrid:
        """The grid of a call; calls with equal positions share one."""
        return self._grid(call.q.shape[2], call.k.shape[2], call.q_start)

    def _grid(self, q_len: int, k_len: int, q_start: int | torch.Tensor | None) -> CallGrid:
        start = k_len - q_len if q_start is None else q_start
        if isinstance(start, torch.Tensor):
            # A copy, since the caller may change it in place before the backward pass.
            return CallGrid(Grid.whole(q_len, k_len, start.clone()), None)
        known = self._grids.get((k_len, start))
        if known is not None:
            return known
        return self._grids.keep((k_len, start), CallGrid(Grid.whole(q_len, k_len, start), None))


class StructurePlans:
    """Structure plans by `Call.structure_key`; False where each call needs a plan of its own."""

    def __init__(self) -> None:
        self.kept: Newest[StructurePlan | bool] = Newest(512)

    def forget(self) -> None:
        self.kept.clear()

    def find(self, call: Call) -> StructurePlan | None:
        """The structure plan of a call, made if none is kept; None if the call needs a plan of its own."""
        pattern = call.pattern
        row_keys = pattern.row_keys if isinstance(pattern, Pattern) else None
        if row_keys is None:
            return None
        try:
            key = call.structure_key(row_keys.structure)
            plan = self.kept.get(key)
        except LOOKUP_ERRORS:
            return None
        if key is None:
            return None
        if plan is None:
            plan = self.kept.keep(key, _plan_of(call))
        return plan if isinstance(plan, StructurePlan) else None


def _fits(row_keys: RowKeys, q_len: int, k_len: int) -> bool:
    """Whether a mask has a boolean for each key and, inside a window, at most MOST_BITS pairs."""
    mask = row_keys.mask
    if row_keys.of_call is not None:
        # A window that begins behind the query orders the sums of a row otherwise in a plan of its own.
        leaves_gap = row_keys.window.left is not None and row_keys.window.left < 0
        return row_keys.of_call == (q_len, k_len) and not leaves_gap
    if mask is None:
        return True
    if mask.shape[-1] < k_len:
        return False
    batch = mask.shape[0] if mask.dim() > 1 else 1
    return row_keys.window == EVERY_PAIR or batch * q_len * k_len <= MOST_BITS


def _plan_of(call: Call) -> StructurePlan | bool:
    """The structure plan of a call; False if none serves it, or if it is refused, as its own plan then explains."""
    call = call.in_numbers()
    if call.backend not in ("auto", READS_ROW_KEYS) or has_no_values(call.q, call.k, call.v):
        return False
    pattern: Any = call.pattern
    batch, heads, q_len, _ = call.q.shape
    try:
        problem = call._replace(pattern=with_every_key(pattern.row_keys, batch)).problem()
        pattern.check(batch, heads, q_len, call.k.shape[2])
        plan = make_plan(problem, BACKENDS, READS_ROW_KEYS)
    except RegardError:
        return False
    return StructurePlan(plan) if plan.takes_row_keys else False
