"""The runs of keys of a few queries, and the mask of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from regard.backends.schedule import Schedule
from regard.core.backend import Operands
from regard.core.problem import PER_ROW, Problem
from regard.patterns.row_blocks import Kind, Run

MOST = 4  # the most runs; more are computed as one run with a mask

Runs = tuple[Run, ...]


def lower(problem: Problem) -> Runs:
    """The runs of a problem's queries as one row block: WHOLE without a mask, BITS with one.

    Statistics need all reachable keys in one run, so if any are requested there is one run.
    """
    schedule = Schedule.of_problem(problem, rows=problem.q_len)
    if not schedule.keys:
        return ()
    whole = (Run(schedule.keys, Kind.BITS),)
    if problem.q_start is PER_ROW:
        return whole
    without_mask = Kind.WHOLE if problem.bias is None else Kind.BITS
    if problem.pattern.sees_all(problem.q_start, problem.q_start + problem.q_len - 1, schedule.keys):
        return (Run(schedule.keys, without_mask),)
    if set(problem.want) - {"log_sum_exp"}:
        return whole
    runs = schedule.whole.runs
    if len(runs) > MOST:
        return whole
    return tuple(Run(run.keys, without_mask if run.kind == Kind.WHOLE else Kind.BITS) for run in runs)


def allowed(problem: Problem, operands: Operands, run: Run) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Which pairs of a run are allowed and what is added to their scores, both (batch or 1, heads or 1, q_len or 1,
    keys or 1) or None; a score of -inf masks a pair."""
    if run.kind == Kind.WHOLE:
        return None, None
    grid = operands.grid.block(range(problem.q_len), run.keys)
    pairs = problem.pattern.evaluate(grid)
    pairs = pairs if pairs.dim() == 4 else pairs[None, None]
    bias = operands.bias_block(grid)
    return (pairs, None) if bias is None else (pairs & (bias != -torch.inf), bias)


def with_columns(runs: Iterable[Run]) -> Iterator[tuple[Run, slice]]:
    """Each run with its columns in the concatenation of all runs."""
    start = 0
    for run in runs:
        yield run, slice(start, start + len(run.keys))
        start += len(run.keys)
