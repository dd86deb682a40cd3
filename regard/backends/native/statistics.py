"""The statistics of one call of the kernel: the memory that it fills with them, and what they cost."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.backends.native.library import MOST_TOP, CStatistics
from regard.backends.statistics.second_pass import with_statistics
from regard.core.backend import Cost
from regard.core.problem import Problem
from regard.core.result import TopKeys, TopKeysFound, WeightsOf, requested

WATCHED = 30  # floating-point operations that take as long as the statistics of rows, for each pair
AGAIN = 60  # the same for a weight that is computed a second time, without its score


def computes_statistics(problem: Problem) -> bool:
    """Whether the kernel computes the requested statistics; many top keys of a row are left to the second pass."""
    top = requested(TopKeys, problem.want)
    return bool(set(problem.want) - {"log_sum_exp"}) and (top is None or top.count <= MOST_TOP)


class Asked:
    """Memory for the statistics that a problem requests, and the struct that points at it."""

    def __init__(self, problem: Problem, keys: range, dtype: torch.dtype) -> None:
        self._problem, self._dtype, self._struct = problem, dtype, CStatistics()
        self._made: dict[str, torch.Tensor] = {}
        self._slots: tuple[torch.Tensor, ...] = ()
        lines = problem.batch, problem.heads, problem.q_len
        for name, *shape in (("entropy", *lines), ("distance", *lines), ("received", *lines[:2], len(keys))):
            if name in problem.want:
                self._make(name, *shape)
        if (top := requested(TopKeys, problem.want)) is not None:
            self._struct.top = min(top.count, len(keys))
            self._make("top_weights", *lines, self._struct.top)
            self._make("top_keys", *lines, self._struct.top, dtype=torch.int64).fill_(-1)
        chosen = requested(WeightsOf, problem.want)
        if chosen is not None:
            chosen.check(problem.heads, problem.q_len)
        if "weights" in problem.want or chosen is not None:
            whole = chosen is None or "weights" in problem.want
            heads = range(problem.heads) if whole or chosen.heads is None else chosen.heads
            rows = range(problem.q_len) if whole else chosen.rows
            self._make("weights", problem.batch, len(heads), len(rows), len(keys))
            self._struct.weight_heads, self._struct.weight_rows = len(heads), len(rows)
            self._slots = _slots(heads, problem.heads), _slots(rows, problem.q_len)
            self._struct.head_slot, self._struct.row_slot = (x.data_ptr() for x in self._slots)

    @property
    def address(self) -> int:
        """The address of the struct in memory."""
        return ctypes.addressof(self._struct)

    def results(self) -> dict[str, Any]:
        """The statistics by their names in `Result`, once the kernel has run."""
        found: dict[str, Any] = dict(self._made)
        want = self._problem.want
        if (top := requested(TopKeys, want)) is not None:
            missing, pad = (0, top.count - self._struct.top), torch.nn.functional.pad
            weights = pad(found.pop("top_weights"), missing)
            found["top_keys"] = TopKeysFound(pad(found["top_keys"], missing, value=-1), weights)
        if (chosen := requested(WeightsOf, want)) is not None:
            if "weights" in want:
                heads = range(self._problem.heads) if chosen.heads is None else chosen.heads
                found["chosen_weights"] = found["weights"][:, list(heads)][:, :, list(chosen.rows)]
            else:
                found["chosen_weights"] = found.pop("weights")
        return found

    def _make(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Zeros of which the struct has the address."""
        self._made[name] = made = torch.zeros(shape, dtype=dtype or self._dtype, device="cpu")
        setattr(self._struct, name, made.data_ptr())
        return made


def _slots(chosen: Sequence[int], size: int) -> torch.Tensor:
    """The place of each number below `size` among the chosen ones, -1 where it is not among them."""
    slots = torch.full((size,), -1, dtype=torch.int32, device="cpu")
    slots[list(chosen)] = torch.arange(len(chosen), dtype=torch.int32, device="cpu")
    return slots


def with_asked(cost: Cost, problem: Problem) -> Cost:
    """The cost of a call with its statistics, given the cost of its output.

    It is never above what the second pass adds to every backend, so that a call with statistics is computed by the same
    backend as one without, and has the same bits.
    """
    usual = with_statistics(cost, problem)
    if not computes_statistics(problem) or problem.needs_grad or problem.bias_learns:
        return usual  # the second pass computes the gradients
    names = {"weights" if isinstance(want, WeightsOf) else want for want in problem.want} - {"log_sum_exp"}
    again = bool(names & {"received", "weights"})
    watched = bool(names - {"received", "weights"})
    flops = cost.flops + cost.pairs * (WATCHED * watched + (2 * problem.head_dim + AGAIN) * again)
    weights = 4 * problem.pairs if "weights" in problem.want else 0
    return replace(cost, flops=min(flops, usual.flops), peak_bytes=cost.peak_bytes + weights)
