"""Softmax attention of some rows as plain differentiable operations, for second derivatives.

The rows are few enough that autograd saves little of them at a time, so memory grows linearly with the length. Keys
that none of the rows may look at are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from regard.backends import dropout
from regard.backends.flash import weigh
from regard.backends.schedule import Schedule, joined
from regard.backends.scores.formulas import sums_tanh, visible_span
from regard.backends.second_order import Index, Piece
from regard.core.backend import Operands, Relative
from regard.core.problem import Problem
from regard.mechanisms import Softmax
from regard.mechanisms.scores import AroundCentre
from regard.patterns.grid import Grid, four_axes
from regard.patterns.ranges import Ranges, shifted

NUMBERS = 1 << 20  # in the scores of one block, or in the terms of its tanh sums

Maybe = torch.Tensor | None


@dataclass(frozen=True)
class PlainRows:
    """Some rows of a problem and the runs of keys that any of them may look at."""

    problem: Problem
    operands: Operands
    rows: range
    runs: Ranges

    @property
    def lines(self) -> Index:
        """Index of the rows in (batch, heads, q_len, ...)."""
        return slice(None), slice(None), slice(self.rows.start, self.rows.stop)

    @property
    def columns(self) -> slice | torch.Tensor:
        """Index of the keys among the operands' keys."""
        grid = self.operands.grid
        runs = [shifted(run, -grid.keys.start) for run in self.runs]
        if len(runs) == 1:
            return slice(runs[0].start, runs[0].stop)
        indices = [torch.arange(run.start, run.stop, device=grid.device) for run in runs]
        return torch.cat(indices)

    @property
    def inputs(self) -> tuple[Index, ...]:
        """Indices of the parts of q, k, bias, `energy` and centre that these rows need, as in `score_inputs`."""
        keys = slice(None), slice(None), self.columns
        return self.lines, keys, self._index_of_bias(), ..., self.lines

    def _index_of_bias(self) -> Index:
        bias = self.operands.bias
        if bias is None or isinstance(bias, Relative):
            return ...
        rows = slice(None) if bias.shape[2] == 1 else self.lines[2]
        columns = slice(None) if bias.shape[3] == 1 else self.columns
        return slice(None), slice(None), rows, columns

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, bias: Maybe, energy: Maybe, centre: Maybe
    ) -> MaskedScores:
        """The scores (batch, heads, rows, keys), and which of them are masked."""
        problem = self.problem
        dtype = torch.promote_types(q.dtype, torch.float32)
        masked = ~self._join_runs(lambda grid: four_axes(problem.pattern.evaluate(grid)))
        bias = None if bias is None else self._bias_of_pairs(bias.to(dtype))
        if bias is not None:
            masked = masked | (bias == -math.inf)
        distances = None if centre is None else self._distances_from(centre.to(dtype))
        if distances is not None:
            masked = masked | (distances.abs() > self._around_centre.window)
        empty = masked.all(-1, keepdim=True)

        q = q.to(dtype).masked_fill(empty, 0)
        scores = self._compare(q, k.to(dtype), energy) * problem.scale
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        if bias is not None:
            scores = scores + bias
        if distances is not None:
            squares = distances.masked_fill(empty, 0) ** 2
            scores = scores - squares * (self._around_centre.precision / 2)
        return MaskedScores(scores, masked | (scores == -math.inf))

    def kept(self) -> torch.Tensor:
        """Which weights dropout keeps, (batch, heads, rows, keys)."""
        problem = self.problem
        seed = self.operands.dropout_seed
        return self._join_runs(
            lambda grid: dropout.kept(problem.dropout, seed, problem.batch, problem.heads, grid)
        )

    def distances(self) -> torch.Tensor:
        """|k_pos - q_pos|, (batch or 1, 1, rows, keys)."""
        return self._join_runs(lambda grid: four_axes((grid.k_pos - grid.q_pos).abs()))

    @property
    def _around_centre(self) -> AroundCentre:
        assert isinstance(self.problem.mechanism, Softmax)
        score = self.problem.mechanism.score
        assert isinstance(score, AroundCentre)
        return score

    def _join_runs(self, function: Callable[[Grid], torch.Tensor]) -> torch.Tensor:
        """The results of a function of each run's positions, joined along the keys."""
        return torch.cat(
            [function(self.operands.grid.block(self.rows, run)) for run in self.runs], -1
        )

    def _bias_of_pairs(self, bias: torch.Tensor) -> torch.Tensor:
        """The bias of these pairs from a table by distance; a bias tensor is returned unchanged."""
        of_call = self.operands.bias
        if not isinstance(of_call, Relative):
            return bias
        return self._join_runs(Relative(bias, of_call.lowest).block)

    def _distances_from(self, centre: torch.Tensor) -> torch.Tensor:
        """`j - p` of these pairs, where `centre` is the share of the visible keys before p."""
        first, count = visible_span(self.problem, self.operands.grid)
        centres = first + centre * count
        return self._join_runs(lambda grid: grid.k_pos.to(centre.dtype)) - centres[..., None]

    def _compare(self, q: torch.Tensor, k: torch.Tensor, energy: Maybe) -> torch.Tensor:
        """The score of each pair before the scale, (batch, heads, rows, keys)."""
        if energy is None:
            q = q.unflatten(1, (k.shape[1], -1))  # (batch, kv_heads, group, rows, head_dim)
            return (q @ k[:, :, None].mT).flatten(1, 2)
        k = k.repeat_interleave(self.problem.group, dim=1)
        terms = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, rows, keys, terms)
        return (terms * energy.to(q.dtype)[:, None, None]).sum(-1)


@dataclass(frozen=True)
class MaskedScores:
    """Scores (batch, heads, rows, keys) and which of them are masked."""

    scores: torch.Tensor
    masked: torch.Tensor

    @property
    def empty(self) -> torch.Tensor:
        return self.masked.all(-1)

    @property
    def row_sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest score of each row (batch, heads, rows, 1) and the logarithm of the sum of exp(score - highest),
        0 for an empty row; without derivatives."""
        scores = self.scores.detach().masked_fill(self.masked, -math.inf)
        highest = scores.amax(-1, keepdim=True).masked_fill(self.empty[..., None], 0)
        total = (scores - highest).exp().sum(-1, keepdim=True)
        return highest, total.masked_fill(self.empty[..., None], 1).log()


def rows_of(
    problem: Problem, operands: Operands, wanted: list[range] | None = None
) -> Iterator[PlainRows]:
    """The rows of a problem, or only those in `wanted`, in blocks of as many as fit."""
    schedule = Schedule.of_problem(problem, problem.q_len)
    width = problem.batch * problem.heads * (problem.head_dim if sums_tanh(problem) else 1)

    def runs(rows: range) -> Ranges:
        return joined(tuple(run.keys for run in schedule.block_of(rows).runs))

    for some in [range(problem.q_len)] if wanted is None else wanted:
        first = some.start
        while first < some.stop:
            rows = range(first, first + 1)
            keys = runs(rows)
            while rows.stop < some.stop:  # double the rows while their scores fit
                more_rows = range(first, min(some.stop, first + 2 * len(rows)))
                more_keys = runs(more_rows)
                if len(more_rows) * sum(map(len, more_keys)) * width > NUMBERS:
                    break
                rows = more_rows
                keys = more_keys
            if keys:
                yield PlainRows(problem, operands, rows, keys)
            first = rows.stop


def softmax_pieces(problem: Problem, operands: Operands) -> Iterator[Piece]:
    """The pieces that compute output and log-sum-exp from (v, *score_inputs)."""
    for rows in rows_of(problem, operands):

        def compute(
            v: torch.Tensor, *inputs: Any, rows: PlainRows = rows
        ) -> tuple[torch.Tensor, ...]:
            scores = rows.scores(*inputs)
            weights, log_sum_exp = weigh(scores.scores, scores.masked)
            if problem.dropout >= 1:
                weights = weights * 0
            elif problem.dropout:
                weights = weights * rows.kept() / (1 - problem.dropout)
            weights = weights.unflatten(1, (v.shape[1], -1))  # (batch, kv_heads, group, rows, keys)
            output = (weights @ v.to(weights.dtype)[:, :, None]).flatten(1, 2)
            return output, log_sum_exp

        keys = slice(None), slice(None), rows.columns
        yield Piece(compute, (keys, *rows.inputs), (rows.lines, rows.lines))
