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
from regard.patterns import Grid
from regard.patterns.grid import four_axes
from regard.patterns.ranges import Ranges

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
        here = self.operands.grid.keys.start
        if len(self.runs) == 1:
            return slice(self.runs[0].start - here, self.runs[0].stop - here)
        device = self.operands.grid.device
        return torch.cat(
            [torch.arange(run.start - here, run.stop - here, device=device) for run in self.runs]
        )

    @property
    def inputs(self) -> tuple[Index, ...]:
        """Indices of the parts of q, k, bias, `energy` and centre that these rows need, as in `score_inputs`."""
        keys = slice(None), slice(None), self.columns
        return self.lines, keys, self._bias_place(), ..., self.lines

    def _bias_place(self) -> Index:
        bias = self.operands.bias
        if bias is None or isinstance(bias, Relative):
            return ...
        rows = slice(None) if bias.shape[2] == 1 else self.lines[2]
        return slice(None), slice(None), rows, slice(None) if bias.shape[3] == 1 else self.columns

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, bias: Maybe, energy: Maybe, centre: Maybe
    ) -> Scored:
        """The scores (batch, heads, rows, keys), and which of them are masked."""
        problem = self.problem
        wide = torch.promote_types(q.dtype, torch.float32)
        hidden = ~self._by_run(lambda grid: four_axes(problem.pattern.evaluate(grid)))
        bias = None if bias is None else self._spread(bias.to(wide))
        if bias is not None:
            hidden = hidden | (bias == -math.inf)
        apart = None if centre is None else self._apart(centre.to(wide))
        if apart is not None:
            hidden = hidden | (apart.abs() > self._local.window)
        empty = hidden.all(-1, keepdim=True)
        scores = self._alike(q.to(wide).masked_fill(empty, 0), k.to(wide), energy) * problem.scale
        if problem.softcap is not None:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        if bias is not None:
            scores = scores + bias
        if apart is not None:
            scores = scores - apart.masked_fill(empty, 0) ** 2 * (self._local.precision / 2)
        return Scored(scores, hidden | (scores == -math.inf))

    def kept(self) -> torch.Tensor:
        """Which weights dropout keeps, (batch, heads, rows, keys)."""
        problem = self.problem
        seed = self.operands.dropout_seed
        return self._by_run(
            lambda grid: dropout.kept(problem.dropout, seed, problem.batch, problem.heads, grid)
        )

    def distances(self) -> torch.Tensor:
        """|k_pos - q_pos|, (batch or 1, 1, rows, keys)."""
        return self._by_run(lambda grid: four_axes((grid.k_pos - grid.q_pos).abs()))

    @property
    def _local(self) -> AroundCentre:
        assert isinstance(self.problem.mechanism, Softmax)
        score = self.problem.mechanism.score
        assert isinstance(score, AroundCentre)
        return score

    def _by_run(self, of: Callable[[Grid], torch.Tensor]) -> torch.Tensor:
        """The results of a function of each run's positions, concatenated along the keys."""
        return torch.cat([of(self.operands.grid.block(self.rows, run)) for run in self.runs], -1)

    def _spread(self, bias: torch.Tensor) -> torch.Tensor:
        """The bias of these pairs from a table by distance; a bias tensor is returned unchanged."""
        given = self.operands.bias
        if not isinstance(given, Relative):
            return bias
        return self._by_run(Relative(bias, given.lowest).block)

    def _apart(self, centre: torch.Tensor) -> torch.Tensor:
        first, count = visible_span(self.problem, self.operands.grid)
        places = first + centre * count
        return self._by_run(lambda grid: grid.k_pos.to(centre.dtype)) - places[..., None]

    def _alike(self, q: torch.Tensor, k: torch.Tensor, energy: Maybe) -> torch.Tensor:
        """The score of each pair before the scale, (batch, heads, rows, keys)."""
        if energy is None:
            q = q.unflatten(1, (k.shape[1], -1))  # (batch, kv_heads, group, rows, head_dim)
            return (q @ k[:, :, None].mT).flatten(1, 2)
        k = k.repeat_interleave(self.problem.group, dim=1)
        terms = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, rows, keys, terms)
        return (terms * energy.to(q.dtype)[:, None, None]).sum(-1)


@dataclass(frozen=True)
class Scored:
    """Scores (batch, heads, rows, keys) and which of them are masked."""

    scores: torch.Tensor
    hidden: torch.Tensor

    @property
    def empty(self) -> torch.Tensor:
        return self.hidden.all(-1)

    @property
    def row_sums(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest score of each row (batch, heads, rows, 1) and the logarithm of the sum of exp(score - highest),
        0 for an empty row; without derivatives."""
        scores = self.scores.detach().masked_fill(self.hidden, -math.inf)
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
        at = some.start
        while at < some.stop:
            count = 1
            here = runs(range(at, at + 1))
            while at + count < some.stop:  # double the rows while their scores fit
                more = range(at, min(some.stop, at + 2 * count))
                wider = runs(more)
                if len(more) * sum(map(len, wider)) * width > NUMBERS:
                    break
                count = len(more)
                here = wider
            if here:
                yield PlainRows(problem, operands, range(at, at + count), here)
            at += count


def softmax_pieces(problem: Problem, operands: Operands) -> Iterator[Piece]:
    """The pieces that compute output and log-sum-exp from (v, *score_inputs)."""
    for rows in rows_of(problem, operands):

        def compute(
            v: torch.Tensor, *inputs: Any, rows: PlainRows = rows
        ) -> tuple[torch.Tensor, ...]:
            scored = rows.scores(*inputs)
            weights, log_sum_exp = weigh(scored.scores, scored.hidden)
            if problem.dropout >= 1:
                weights = weights * 0
            elif problem.dropout:
                weights = weights * rows.kept() / (1 - problem.dropout)
            weights = weights.unflatten(1, (v.shape[1], -1))  # (batch, kv_heads, group, rows, keys)
            return (weights @ v.to(weights.dtype)[:, :, None]).flatten(1, 2), log_sum_exp

        keys = slice(None), slice(None), rows.columns
        yield Piece(compute, (keys, *rows.inputs), (rows.lines, rows.lines))
