"""Statistics of some rows as plain differentiable operations, for second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import WeightsOf, asked_for
from regard.kernels.scores.plain import Rows, rows_of
from regard.kernels.second_order import Index, Piece
from regard.kernels.statistics.collectors import KINDS

Weights = torch.Tensor  # (batch, heads, rows, keys)
Statistic = tuple[Callable[[Weights, torch.Tensor], torch.Tensor], Index]  # the statistic, and where its part of it is


def statistics_pieces(
    problem: Problem, operands: Operands, wanted: list[range] | None, indices: torch.Tensor | None
) -> Iterator[Piece]:
    """The statistics that a problem wants, in the order of `KINDS`, from (log_sum_exp, *score_inputs).

    Args:
        problem: the call.
        operands: its tensors.
        wanted: the rows that are looked at; None for all.
        indices: of the top keys among the operands' keys, (batch, heads, q_len, count), -1 where there are fewer.
    """
    names = [kind.name for kind in KINDS if kind.wanted(problem)]
    for rows in rows_of(problem, operands, wanted):
        statistics = [_statistic(name, rows, indices) for name in names]

        def compute(
            log_sum_exp: torch.Tensor, *inputs: Any, rows: Rows = rows, statistics: list[Statistic] = statistics
        ) -> list[torch.Tensor]:
            scored = rows.scores(*inputs)
            empty, hidden = scored.empty[..., None], scored.hidden
            logs = scored.scores.masked_fill(hidden, 0) - log_sum_exp[..., None].masked_fill(empty, 0)
            weights = logs.exp().masked_fill(hidden, 0)
            return [statistic(weights, logs) for statistic, _ in statistics]

        yield Piece(compute, (rows.lines, *rows.inputs), tuple(place for _, place in statistics))


def _statistic(name: str, rows: Rows, indices: torch.Tensor | None) -> Statistic:
    lines, columns = rows.lines, rows.columns
    if name == "received":
        return lambda weights, _: weights.sum(-2), (*lines[:2], columns)
    if name == "distance":
        return lambda weights, _: (weights * rows.distances()).sum(-1), lines
    if name == "weights":
        return lambda weights, _: weights, (*lines, columns)
    if name == "chosen_weights":
        return _chosen(rows)
    if name == "top_keys":
        assert indices is not None
        return _top(rows, indices[lines]), lines
    assert name == "entropy"
    return lambda weights, logs: -(weights * logs).sum(-1), lines


def _chosen(rows: Rows) -> Statistic:
    """The weights of the rows and heads that were named, as far as they are among these rows."""
    asked = asked_for(WeightsOf, rows.problem.want)
    assert asked is not None
    slots = [slot for slot, row in enumerate(asked.rows) if row in rows.rows]
    lines = [asked.rows[slot] - rows.rows.start for slot in slots]
    heads = list(range(rows.problem.heads) if asked.heads is None else asked.heads)
    columns = rows.columns
    if isinstance(columns, torch.Tensor):
        place: Index = (slice(None), slice(None), torch.tensor(slots)[:, None], columns.cpu())
    else:
        place = (slice(None), slice(None), slots, columns)
    return lambda weights, _: weights[:, heads][:, :, lines], place


def _top(rows: Rows, indices: torch.Tensor) -> Callable[[Weights, torch.Tensor], torch.Tensor]:
    """The weights at these keys; 0 where there is none."""
    columns = rows.columns
    if isinstance(columns, torch.Tensor):
        places = torch.searchsorted(columns, indices.clamp_min(0).contiguous())
    else:
        places = indices - columns.start
    count = sum(map(len, rows.runs))
    return lambda weights, _: weights.gather(-1, places.clamp(0, count - 1)).masked_fill(indices < 0, 0)
