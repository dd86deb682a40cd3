"""Linformer in time and memory linear in the length: project keys and values to a few, then attend to those.

    softmax(q (E k)ᵀ · scale) (F v)

There are `rank` projected keys, which every query may look at, so attention to them is one fused call without a mask.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from regard.backends import flash
from regard.backends.limits import Limited, not_empty, on_mechanism
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.mechanisms import Linformer
from regard.patterns.visible import visible_keys


class Projected(Limited):
    """Linformer for any length, padding and sharing of projections; half types are computed in float32."""

    name = "linformer"
    limits = (
        on_mechanism(Linformer, "Linformer's attention"),
        not_empty,
        flash.takes_dtype,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        assert isinstance(problem.mechanism, Linformer)
        return Offer(_cost(problem, problem.mechanism.rank), partial(_run, problem))


def _run(problem: Problem, operands: Operands) -> Result:
    assert isinstance(problem.mechanism, Linformer)
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    E, F = problem.mechanism.projections(operands.parameters)
    k = _project(E.to(wide), operands.k.to(wide))  # (batch, kv_heads, rank, head_dim)
    v = _project(F.to(wide), operands.v.to(wide))  # (batch, kv_heads, rank, v_dim)
    q = operands.q.to(wide)
    empty_rows = _empty_rows(problem, operands)
    if empty_rows is not None:
        q = q.masked_fill(empty_rows, 0)

    call = flash.FusedCall(mask=None, causal=False, scale=problem.scale)
    output, log_sum_exp = flash.attend(q, k, v, call)

    if empty_rows is not None:
        output = output.masked_fill(empty_rows, 0)
        log_sum_exp = log_sum_exp.masked_fill(empty_rows[..., 0], -math.inf)
    return Result(output.to(operands.q.dtype), problem.wanted_sums(log_sum_exp))


def _project(projection: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(batch, kv_heads, rank, dim) by one product for all batch rows, so that its gradient is not stored for each."""
    return torch.einsum("hrn,bhnd->bhrd", projection, x)


def _empty_rows(problem: Problem, operands: Operands) -> torch.Tensor | None:
    """Batch rows without a visible key, (batch or 1, 1, 1, 1); None if all keys are visible."""
    keys = len(operands.grid.keys)
    visible = visible_keys(problem.pattern, operands.grid)  # (batch or 1, 1, keys), or None for all
    if visible is None:
        visible = torch.ones(1, 1, keys, dtype=torch.bool, device=operands.q.device)
    empty_rows = ~visible.any(-1)[..., None, None]
    return empty_rows if empty_rows.any() else None


def _cost(problem: Problem, rank: int) -> Cost:
    width = problem.computed_bytes
    dims = problem.head_dim + problem.v_dim
    reachable = len(problem.reachable_keys)
    rows = problem.batch * problem.heads * problem.q_len
    keys = problem.batch * problem.kv_heads * reachable
    projected_keys = problem.batch * problem.kv_heads * rank
    projections = 2 * problem.kv_heads * rank * reachable
    pairs = rows * rank
    times = 3.5 if problem.needs_grad else 1
    # Keys and values are copied for one product, and widened.
    copied = (2 * keys + projected_keys) * dims
    return Cost(
        flops=2 * dims * (keys * rank + pairs) * times,
        bytes=width * ((2 * keys + rows + projected_keys) * dims + projections),
        peak_bytes=width * copied,
        pairs=pairs,
        calls=4 * (3 if problem.needs_grad else 1),
    )
