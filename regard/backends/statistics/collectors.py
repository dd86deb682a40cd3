"""One class for each statistic: how it is added up block by block, and its gradient with respect to the weights.

The last part of the file has the same statistics as plain differentiable operations, for second derivatives.

In this file `logs` are logarithms of weights to base 2, -inf for masked pairs, and `weights` are their exp2; both have
the shape (batch, heads, rows, keys) of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.far import any_far
from regard.backends.scores.blocks import ScoreBlock, Scores
from regard.backends.scores.plain import PlainRows, Scored, rows_of
from regard.backends.second_order import Index, Piece
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import TopKeys, WeightsOf, requested

FLOOR = -2000.0  # a finite log2 whose exp2 is 0 in every dtype
CANDIDATES = 8  # keys of a group; the largest weights are searched only in the groups with the largest maxima


class Collector:
    """A statistic that is computed block by block: `begin`, then `collect` for each block, then `finish`."""

    name = ""
    reads = "weights"  # which arguments `collect` reads: "weights", "logs" or "both"
    result: torch.Tensor

    def __init__(self, scores: Scores) -> None:
        self.scores, self.problem = scores, scores.problem

    @classmethod
    def wanted(cls, problem: Problem) -> bool:
        return cls.name in problem.want

    def begin(self) -> None:
        """Allocate `result`; by default one number for each row."""
        self.result = self._zeros(*self.scores.rows)

    def needs(self, block: ScoreBlock) -> bool:
        return True

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the contribution of a block to `result`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete `result` after the last block."""

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        """Add to `by_weight` the gradient of the block's weights, given `grad`, that of `result`."""
        raise NotImplementedError

    def _zeros(self, *shape: int) -> torch.Tensor:
        return self.scores.q.new_zeros(shape)


class Entropy(Collector):
    """-Σ w log w in nats. It must be collected last, because it overwrites the logarithms."""

    name = "entropy"
    reads = "both"

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        self.result[block.lines].sub_(_finite(logs).mul_(weights).sum(-1), alpha=math.log(2))

    def finish(self) -> None:
        self.result.clamp_min_(0)  # a weight may be rounded to more than 1

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        slope = _finite(logs).mul_(math.log(2)).add_(1)  # of w log w
        by_weight.addcmul_(slope, grad[block.lines][..., None], value=-1)


class Received(Collector):
    """The sum of weights over the queries, for each key."""

    name = "received"

    def begin(self) -> None:
        self.result = self._zeros(*self.scores.rows[:2], self.scores.k.shape[2])

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        self.result[block.lot.batch, block.heads, block.columns].add_(weights.sum(-2))

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        by_weight.add_(grad[block.lot.batch, block.heads, block.columns][..., None, :])


class Distance(Collector):
    """Σ w |k_pos - q_pos|."""

    name = "distance"

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores)
        self._last, self._shape = (range(0), range(0)), (0, 0)

    def begin(self) -> None:
        super().begin()
        self._room = self.scores.workspace()

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        product = torch.mul(weights, self._distances(block), out=self._room.shaped(block.shape))
        self.result[block.lines].add_(product.sum(-1))

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        by_weight.addcmul_(self._distances(block), grad[block.lines][..., None])

    def _distances(self, block: ScoreBlock) -> torch.Tensor:
        """(batch or 1, 1, rows, keys); the same for all heads of a block."""
        if self._last != (block.rows, block.keys):
            grid = self.scores.grid.block(block.rows, block.keys)
            corner = (
                grid.k_pos[0] - grid.q_pos[..., :1, :]
            )  # exact, however far out the positions are
            self._far = (self._steps(len(block.rows), len(block.keys)) + corner).abs_()
            self._last = block.rows, block.keys
        return block.of(self._far)

    def _steps(self, rows: int, keys: int) -> torch.Tensor:
        """Distances relative to that of the first row and key, (1, 1, rows, keys)."""
        if self._shape != (rows, keys):
            i, j = (torch.arange(size, device=self.scores.grid.device) for size in (rows, keys))
            self._table, self._shape = (
                (j - i[:, None]).to(self.scores.dtype)[None, None],
                (rows, keys),
            )
        return self._table


class Weights(Collector):
    """All of them."""

    name = "weights"

    def begin(self) -> None:
        self.result = self._zeros(*self.scores.rows, self.scores.k.shape[2])

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        self.result[(*block.lines, block.columns)] = weights

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        by_weight.add_(grad[(*block.lines, block.columns)])


class ChosenWeights(Collector):
    """The weights of some rows and heads."""

    name = "chosen_weights"

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores)
        asked = requested(WeightsOf, self.problem.want)
        assert asked is not None
        self._rows = {row: slot for slot, row in enumerate(asked.rows)}
        self._heads = range(self.problem.heads) if asked.heads is None else asked.heads

    @classmethod
    def wanted(cls, problem: Problem) -> bool:
        return requested(WeightsOf, problem.want) is not None

    def begin(self) -> None:
        self.result = self._zeros(
            self.problem.batch, len(self._heads), len(self._rows), self.scores.k.shape[2]
        )

    def needs(self, block: ScoreBlock) -> bool:
        return bool(self._heads_in(block)) and any(row in self._rows for row in block.rows)

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        rows, slots = self._rows_in(block)
        for slot, head in self._heads_in(block):
            self.result[block.lot.batch, slot][:, slots, block.columns] = weights[:, head, rows]

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        rows, slots = self._rows_in(block)
        for slot, head in self._heads_in(block):
            by_weight[:, head, rows] += grad[block.lot.batch, slot][:, slots, block.columns]

    def _rows_in(self, block: ScoreBlock) -> tuple[list[int], list[int]]:
        """The chosen rows of the block, counted from its first row, and their indices in the result."""
        here = [
            (row - block.rows.start, self._rows[row]) for row in block.rows if row in self._rows
        ]
        return [row for row, _ in here], [slot for _, slot in here]

    def _heads_in(self, block: ScoreBlock) -> list[tuple[int, int]]:
        start, stop = block.heads.start, block.heads.stop
        return [
            (slot, head - start) for slot, head in enumerate(self._heads) if start <= head < stop
        ]


class Top(Collector):
    """The largest weights of each row and their keys: after each block, the largest of those so far and the block's."""

    name = "top_keys"
    reads = "logs"
    indices: torch.Tensor

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores)
        asked = requested(TopKeys, self.problem.want)
        assert asked is not None
        self._count = asked.count

    @classmethod
    def wanted(cls, problem: Problem) -> bool:
        return requested(TopKeys, problem.want) is not None

    def begin(self) -> None:
        self.result = self._zeros(*self.scores.rows, self._count).fill_(
            -math.inf
        )  # logarithms, until the end
        self.indices = torch.full_like(self.result, -1, dtype=torch.int64)

    def finish(self) -> None:
        self.result.exp2_()

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        largest, indices = _largest(logs, min(self._count, logs.shape[-1]))
        indices = (indices + block.columns.start).masked_fill_(largest == -math.inf, -1)
        values = torch.cat([self.result[block.lines], largest], -1)
        places = torch.cat([self.indices[block.lines], indices], -1)
        self.result[block.lines], chosen = values.topk(self._count, -1)
        self.indices[block.lines] = places.gather(-1, chosen)

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        columns = self.indices[block.lines] - block.columns.start
        inside = (columns >= 0) & (columns < logs.shape[-1]) & (self.indices[block.lines] >= 0)
        by_weight.scatter_add_(-1, columns.clamp(0, logs.shape[-1] - 1), grad[block.lines] * inside)


KINDS: tuple[type[Collector], ...] = (
    Received,
    Distance,
    Weights,
    ChosenWeights,
    Top,
    Entropy,
)  # Entropy comes last


def _finite(logs: torch.Tensor) -> torch.Tensor:
    """The logarithms with -inf replaced in place by a finite number, so that 0 · log 0 is 0."""
    return logs.clamp_min_(FLOOR)


def _largest(logs: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row and their indices.

    Keys are divided into groups. The `count` largest are all in the `count` groups with the largest maxima, so only
    those groups are searched.
    """
    keys = logs.shape[-1]
    groups = keys // CANDIDATES
    if keys % CANDIDATES or groups <= 4 * count:
        return logs.topk(count, -1)
    best = logs.unflatten(-1, (CANDIDATES, groups)).amax(-2).topk(count, -1, sorted=False).indices
    members = torch.arange(0, keys, groups, device=logs.device)[:, None]
    candidates = (best[..., None, :] + members).flatten(-2)
    largest, chosen = logs.gather(-1, candidates).topk(count, -1)
    return largest, candidates.gather(-1, chosen)


# A function from weights (batch, heads, rows, keys) and their logarithms to part of a statistic, and the part's index
Statistic = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], Index]


def statistics_pieces(
    problem: Problem, operands: Operands, wanted: list[range] | None, indices: torch.Tensor | None
) -> Iterator[Piece]:
    """The statistics that a problem wants, in the order of `KINDS`, from (log_sum_exp, *score_inputs).

    Args:
        problem: the call.
        operands: its tensors.
        wanted: the rows that the statistics need; None for all.
        indices: of the top keys among the operands' keys, (batch, heads, q_len, count), -1 where there are fewer.
    """
    names = [kind.name for kind in KINDS if kind.wanted(problem)]
    for rows in rows_of(problem, operands, wanted):
        statistics = [_statistic(name, rows, indices) for name in names]

        def compute(
            log_sum_exp: torch.Tensor,
            *inputs: Any,
            rows: PlainRows = rows,
            statistics: list[Statistic] = statistics,
        ) -> list[torch.Tensor]:
            scored = rows.scores(*inputs)
            hidden = scored.hidden
            logs = _logarithms(scored, log_sum_exp, operands.sink)
            weights = logs.exp().masked_fill(hidden, 0)
            return [statistic(weights, logs) for statistic, _ in statistics]

        yield Piece(compute, (rows.lines, *rows.inputs), tuple(place for _, place in statistics))


def _logarithms(
    scored: Scored, log_sum_exp: torch.Tensor, sink: torch.Tensor | None
) -> torch.Tensor:
    """The logarithms of the weights, with derivatives by scores and log-sum-exps; finite where a pair is masked."""
    sums = log_sum_exp[..., None].masked_fill(scored.empty[..., None], 0)
    scores = scored.scores.masked_fill(scored.hidden, 0)
    if not any_far(log_sum_exp):
        return scores - sums
    # The numbers come from the highest score and the sum, the derivatives from the log-sum-exp.
    highest, log_sum = scored.row_sums
    if sink is not None:
        log_sum = log_sum + F.softplus(sink[..., None].to(log_sum.dtype) - (highest + log_sum))
    return (scores - highest) - log_sum - (sums - sums.detach())


def _statistic(name: str, rows: PlainRows, indices: torch.Tensor | None) -> Statistic:
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


def _chosen(rows: PlainRows) -> Statistic:
    """The weights of the requested rows and heads that are among these rows."""
    asked = requested(WeightsOf, rows.problem.want)
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


def _top(
    rows: PlainRows, indices: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The weights of the keys with these indices; 0 where the index is -1."""
    columns = rows.columns
    if isinstance(columns, torch.Tensor):
        places = torch.searchsorted(columns, indices.clamp_min(0).contiguous())
    else:
        places = indices - columns.start
    count = sum(map(len, rows.runs))
    return lambda weights, _: weights.gather(-1, places.clamp(0, count - 1)).masked_fill(
        indices < 0, 0
    )
