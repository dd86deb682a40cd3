"""A key or value that is not finite reaches the queries that may see it, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from regard.detail import Result, TopKeysFound
from regard.operands import Operands
from regard.patterns import Full
from regard.problem import PER_ROW, Problem
from regard.statistics import WeightsOf, asked_for

PAIRS = 1 << 22  # looked at together


def hides_pairs(problem: Problem, keys: range) -> bool:
    """Does the pattern or the bias hide some pairs? A value that is not finite could reach a query through them."""
    pattern = problem.pattern
    if not keys or problem.empty:
        return False
    if problem.bias:  # a tensor, which may hide pairs by -inf
        return True
    if isinstance(pattern, Full):
        return False
    if problem.q_start is PER_ROW:
        return True
    return not pattern.sees_all(problem.q_start, problem.q_start + problem.q_len - 1, keys)


def looks_sound(result: Result) -> bool:
    """Is the sum of the output finite? Always True on other devices than the CPU, where reading it would block."""
    output = result.output
    if output.device.type != "cpu":
        return True
    return math.isfinite(output.sum(dtype=torch.promote_types(output.dtype, torch.float32)).item())


def contained(problem: Problem, operands: Operands, result: Result, compute: Callable[[Operands], Result]) -> Result:
    """The result computed again, with NaN only for queries that may see a key or value that is not finite.

    A weight of 0 does not stop a NaN, so the others are computed without those keys' numbers.
    """
    operands = operands.widened()
    bad = ~(operands.k.isfinite().all(-1) & operands.v.isfinite().all(-1))  # (batch, kv_heads, keys)
    if not bad.any():
        return result
    k, v = (x.masked_fill(bad[..., None], 0) for x in (operands.k, operands.v))
    touched = _touched(problem, operands, bad)
    return _with_nan(compute(replace(operands, k=k, v=v)), touched, problem)


def _touched(problem: Problem, operands: Operands, bad: torch.Tensor) -> torch.Tensor:
    """Which queries may see a key with a number that is not finite, (batch, heads, q_len)."""
    grid = operands.grid
    bad = bad.repeat_interleave(problem.group, dim=1)  # (batch, heads, keys)
    found = bad.new_zeros(problem.batch, problem.heads, problem.q_len)
    step = max(1, PAIRS // max(1, problem.batch * problem.heads * problem.q_len))
    for run in _runs(bad.flatten(0, 1).any(0), step):
        keys = range(grid.keys.start + run.start, grid.keys.start + run.stop)
        here = grid.block(grid.rows, keys)
        allowed = problem.pattern.evaluate(here)
        if (bias := operands.bias_block(here)) is not None:
            allowed = allowed & (bias != -math.inf)
        found |= (allowed & bad[:, :, None, run]).any(-1)
    return found


def _runs(bad: torch.Tensor, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover the places of True."""
    places = bad.nonzero().flatten().tolist()
    starts = [at for before, at in pairwise([-2, *places]) if at != before + 1]
    stops = [at + 1 for at, after in pairwise([*places, -2]) if after != at + 1]
    for start, stop in zip(starts, stops, strict=True):
        yield from (slice(at, min(at + size, stop)) for at in range(start, stop, size))


def _with_nan(result: Result, touched: torch.Tensor, problem: Problem) -> Result:
    """The result with NaN in the outputs and statistics of the touched queries."""
    filled = lambda x, at: None if x is None else _WithNaN.apply(x, at)  # noqa: E731
    rows, chosen = touched[..., None], None
    if (asked := asked_for(WeightsOf, problem.want)) is not None:
        heads = list(range(problem.heads) if asked.heads is None else asked.heads)
        chosen = touched[:, heads][:, :, list(asked.rows)][..., None]
    top = result.top_keys
    return Result(
        output=_WithNaN.apply(result.output, rows),
        log_sum_exp=filled(result.log_sum_exp, touched),
        entropy=filled(result.entropy, touched),
        received=filled(result.received, touched.any(-1, keepdim=True)),
        weights=filled(result.weights, rows),
        top_keys=None if top is None else TopKeysFound(top.indices, _WithNaN.apply(top.weights, rows)),
        distance=filled(result.distance, touched),
        chosen_weights=filled(result.chosen_weights, chosen),
    )


class _WithNaN(torch.autograd.Function):
    """Writes NaN at some places, and into the gradient there unless it is 0, as for outputs that no loss uses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.places = places
        return x.masked_fill(places, math.nan)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].masked_fill(ctx.places & (grads[0] != 0), math.nan), None
