"""What is subtracted from scores so that they become logarithms of weights, in units of log 2."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from regard.backends.far import LOG2E, any_far
from regard.backends.scores.blocking import RowBlock, ScoreBlock
from regard.backends.scores.blocks import BlockedScores
from regard.devices import widest_dtype


class Normaliser:
    """The log-sum-exp of every row; of a call with far rows the highest score and the logarithm of the sum, apart.

    Both are computed again from the scores then, which must be those that it is subtracted from.

    Args:
        scores: the scores; `scores.empty_rows` is known.
        log_sum_exp: (batch, heads, q_len), of the keys and of a sink.
        sink: the logits of the sink, (batch or 1, heads or 1, 1); it takes part in the sum.
        runs: the rows that are computed, as in `BlockedScores.row_blocks`.
    """

    def __init__(
        self,
        scores: BlockedScores,
        log_sum_exp: torch.Tensor,
        sink: torch.Tensor | None = None,
        runs: list[range] | None = None,
    ) -> None:
        assert scores.empty_rows is not None
        self._scores = scores
        self._log2_sum: torch.Tensor | None = None
        if any_far(log_sum_exp):
            highest, self._log2_sum = _row_sums(scores, sink, runs)
        else:
            highest = log_sum_exp.to(scores.dtype) * LOG2E
        self._highest = highest.masked_fill(scores.empty_rows, math.inf)
        # Of the row block that is open, what is subtracted, by lots of heads: (units, lines, 1) each.
        self._subtrahends: list[list[torch.Tensor]] = []

    def open(self, row_block: RowBlock) -> None:
        """Begin a row block."""
        self._subtrahends = [self._by_lot(self._highest, row_block)]
        if self._log2_sum is not None:
            self._subtrahends.append(self._by_lot(self._log2_sum, row_block))

    def _by_lot(self, of_rows: torch.Tensor, row_block: RowBlock) -> list[torch.Tensor]:
        rows = slice(row_block.rows.start, row_block.rows.stop)
        by_group = of_rows[:, :, rows].unflatten(1, (-1, self._scores.problem.group))
        return self._scores.split(by_group.flatten(2)[..., None])

    def subtract_from(self, scores: torch.Tensor, block: ScoreBlock) -> torch.Tensor:
        """Logarithms of weights in place of scores (units, lines, keys)."""
        for by_lot in self._subtrahends:
            scores.sub_(by_lot[block.number])
        return scores


def _row_sums(
    scores: BlockedScores, sink: torch.Tensor | None, runs: list[range] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest score of each row, and the logarithm of the sum of the weights exp2(score - highest)."""
    assert scores.empty_rows is not None
    highest = scores.q.new_full(scores.rows, torch.finfo(scores.dtype).min)
    total = torch.zeros_like(highest)
    workspace = scores.workspace()
    for row_block in scores.row_blocks(runs):
        queries = scores.split(scores.queries(row_block.rows))
        for block in scores.blocks(row_block):
            of_block = scores.compute(block, queries, workspace).view(block.shape)
            before = highest[block.lines]
            after = torch.maximum(before, of_block.amax(-1))
            added = of_block.sub_(after[..., None]).exp2_().sum(-1)
            total[block.lines] = total[block.lines] * (before - after).exp2_() + added
            highest[block.lines] = after

    log2_sum = total.log2_().masked_fill_(scores.empty_rows, 0)
    if sink is not None:
        wide = widest_dtype(highest.device)
        above = (highest + log2_sum).to(wide) / LOG2E - sink.to(wide)
        log2_sum += (F.softplus(-above) * LOG2E).to(log2_sum.dtype)
    return highest, log2_sum
