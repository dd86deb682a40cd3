"""One class for each statistic: how it is added up block by block, and its gradient with respect to the weights.

The last part of the file has the same statistics as plain differentiable operations, for second derivatives.

In this file `logs` are logarithms of weights to base 2, -inf for masked pairs, and `weights` are their exp2; both have
the shape (batch, heads, rows, keys) of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.far import any_far
from regard.backends.scores.blocks import BlockedScores, ScoreBlock
from regard.backends.scores.plain import MaskedScores, PlainRows, rows_of
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

    def __init__(self, scores: BlockedScores) -> None:
        self.scores = scores
        self.problem = scores.problem

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

    def __init__(self, scores: BlockedScores) -> None:
        super().__init__(scores)
        self._pairs = (range(0), range(0))  # rows and keys of `_of_pairs`
        self._shape = (0, 0)  # numbers of rows and keys of `_table`

    def begin(self) -> None:
        super().begin()
        self._workspace = self.scores.workspace()

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        room = self._workspace.shaped(block.shape)
        product = torch.mul(weights, self._distances(block), out=room)
        self.result[block.lines].add_(product.sum(-1))

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        by_weight.addcmul_(self._distances(block), grad[block.lines][..., None])

    def _distances(self, block: ScoreBlock) -> torch.Tensor:
        """(batch or 1, 1, rows, keys); the same for all heads of a block."""
        if self._pairs != (block.rows, block.keys):
            grid = self.scores.grid.block(block.rows, block.keys)
            # Of the first row and key; exact, however far out the positions are.
            corner = grid.k_pos[0] - grid.q_pos[..., :1, :]
            steps = self._steps(len(block.rows), len(block.keys))
            self._of_pairs = (steps + corner).abs_()
            self._pairs = block.rows, block.keys
        return block.of(self._of_pairs)

    def _steps(self, rows: int, keys: int) -> torch.Tensor:
        """Distances relative to that of the first row and key, (1, 1, rows, keys)."""
        if self._shape != (rows, keys):
            device = self.scores.grid.device
            i = torch.arange(rows, device=device)
            j = torch.arange(keys, device=device)
            self._table = (j - i[:, None]).to(self.scores.dtype)[None, None]
            self._shape = (rows, keys)
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

    def __init__(self, scores: BlockedScores) -> None:
        super().__init__(scores)
        asked = requested(WeightsOf, self.problem.want)
        assert asked is not None
        self._rows = {row: slot for slot, row in enumerate(asked.rows)}
        self._heads = range(self.problem.heads) if asked.heads is None else asked.heads

    @classmethod
    def wanted(cls, problem: Problem) -> bool:
        return requested(WeightsOf, problem.want) is not None

    def begin(self) -> None:
        keys = self.scores.k.shape[2]
        self.result = self._zeros(self.problem.batch, len(self._heads), len(self._rows), keys)

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
        rows = []
        slots = []
        for row in block.rows:
            if row in self._rows:
                rows.append(row - block.rows.start)
                slots.append(self._rows[row])
        return rows, slots

    def _heads_in(self, block: ScoreBlock) -> list[tuple[int, int]]:
        """The indices of the block's chosen heads in the result, and the heads counted from the block's first."""
        heads = range(block.heads.start, block.heads.stop)
        return [
            (slot, head - heads.start) for slot, head in enumerate(self._heads) if head in heads
        ]


class Top(Collector):
    """The largest weights of each row and their keys: after each block, the largest of those so far and the block's."""

    name = "top_keys"
    reads = "logs"
    indices: torch.Tensor

    def __init__(self, scores: BlockedScores) -> None:
        super().__init__(scores)
        asked = requested(TopKeys, self.problem.want)
        assert asked is not None
        self._count = asked.count

    @classmethod
    def wanted(cls, problem: Problem) -> bool:
        return requested(TopKeys, problem.want) is not None

    def begin(self) -> None:
        # Logarithms, until the end.
        self.result = self._zeros(*self.scores.rows, self._count).fill_(-math.inf)
        self.indices = torch.full_like(self.result, -1, dtype=torch.int64)

    def finish(self) -> None:
        self.result.exp2_()

    def collect(self, block: ScoreBlock, logs: torch.Tensor, weights: torch.Tensor) -> None:
        largest, columns = _largest(logs, min(self._count, logs.shape[-1]))
        columns = (columns + block.columns.start).masked_fill_(largest == -math.inf, -1)
        values = torch.cat([self.result[block.lines], largest], -1)
        indices = torch.cat([self.indices[block.lines], columns], -1)
        self.result[block.lines], chosen = values.topk(self._count, -1)
        self.indices[block.lines] = indices.gather(-1, chosen)

    def send(
        self, block: ScoreBlock, logs: torch.Tensor, grad: torch.Tensor, by_weight: torch.Tensor
    ) -> None:
        indices = self.indices[block.lines]
        columns = indices - block.columns.start
        keys = logs.shape[-1]
        is_inside = (columns >= 0) & (columns < keys) & (indices >= 0)
        by_weight.scatter_add_(-1, columns.clamp(0, keys - 1), grad[block.lines] * is_inside)


# Entropy comes last, since it overwrites the logarithms.
KINDS: tuple[type[Collector], ...] = (
    Received,
    Distance,
    Weights,
    ChosenWeights,
    Top,
    Entropy,
)


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


@dataclass(frozen=True)
class RowStatistic:
    """Part of a statistic as a function of weights (batch, heads, rows, keys) and their logarithms, and its index."""

    compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    place: Index


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
            statistics: list[RowStatistic] = statistics,
        ) -> list[torch.Tensor]:
            scores = rows.scores(*inputs)
            logs = _logarithms(scores, log_sum_exp, operands.sink)
            weights = logs.exp().masked_fill(scores.masked, 0)
            return [statistic.compute(weights, logs) for statistic in statistics]

        places = tuple(statistic.place for statistic in statistics)
        yield Piece(compute, (rows.lines, *rows.inputs), places)


def _logarithms(
    scores: MaskedScores, log_sum_exp: torch.Tensor, sink: torch.Tensor | None
) -> torch.Tensor:
    """The logarithms of the weights, with derivatives by scores and log-sum-exps; finite where a pair is masked."""
    sums = log_sum_exp[..., None].masked_fill(scores.empty[..., None], 0)
    finite = scores.scores.masked_fill(scores.masked, 0)
    if not any_far(log_sum_exp):
        return finite - sums
    # The numbers come from the highest score and the sum, the derivatives from the log-sum-exp.
    highest, log_sum = scores.row_sums
    if sink is not None:
        log_sum = log_sum + F.softplus(sink[..., None].to(log_sum.dtype) - (highest + log_sum))
    return (finite - highest) - log_sum - (sums - sums.detach())


def _statistic(name: str, rows: PlainRows, indices: torch.Tensor | None) -> RowStatistic:
    lines = rows.lines
    columns = rows.columns
    if name == "received":
        return RowStatistic(lambda weights, _: weights.sum(-2), (*lines[:2], columns))
    if name == "distance":
        return RowStatistic(lambda weights, _: (weights * rows.distances()).sum(-1), lines)
    if name == "weights":
        return RowStatistic(lambda weights, _: weights, (*lines, columns))
    if name == "chosen_weights":
        return _chosen(rows)
    if name == "top_keys":
        assert indices is not None
        return RowStatistic(_top(rows, indices[lines]), lines)
    assert name == "entropy"
    return RowStatistic(lambda weights, logs: -(weights * logs).sum(-1), lines)


def _chosen(rows: PlainRows) -> RowStatistic:
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
    return RowStatistic(lambda weights, _: weights[:, heads][:, :, lines], place)


def _top(
    rows: PlainRows, indices: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The weights of the keys with these indices; 0 where the index is -1."""
    columns = rows.columns
    if isinstance(columns, torch.Tensor):
        places = torch.searchsorted(columns, indices.clamp_min(0).contiguous())
    else:
        places = indices - columns.start
    places = places.clamp(0, sum(map(len, rows.runs)) - 1)

    def compute(weights: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return weights.gather(-1, places).masked_fill(indices < 0, 0)

    return compute
