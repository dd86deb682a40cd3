"""What is subtracted from scores so that they become logarithms of weights, in units of log 2."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from regard.backends.far import LOG2E, any_far
from regard.backends.scores.blocking import RowBlock, ScoreBlock
from regard.backends.scores.blocks import Scores


class Normaliser:
    """The log-sum-exp of every row; of a call with far rows the highest score and the logarithm of the sum, apart.

    Both are computed again from the scores then, which must be those that it is subtracted from.

    Args:
        scores: the scores; `scores.empty_rows` is known.
        log_sum_exp: (batch, heads, q_len), of the keys and of a sink.
        sink: the logits of the sink, (batch or 1, heads or 1, 1); it takes part in the sum.
        runs: the rows that are computed, as in `Scores.row_blocks`.
    """

    def __init__(
        self,
        scores: Scores,
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
        self._open: list[list[torch.Tensor]] = []

    def open(self, row_block: RowBlock) -> None:
        rows = slice(row_block.rows.start, row_block.rows.stop)
        group = self._scores.problem.group
        parts = [self._highest] if self._log2_sum is None else [self._highest, self._log2_sum]
        self._open = [
            self._scores.split(x[:, :, rows].unflatten(1, (-1, group)).flatten(2)[..., None])
            for x in parts
        ]

    def subtract_from(self, scores: torch.Tensor, block: ScoreBlock) -> torch.Tensor:
        """Logarithms of weights in place of scores (units, lines, keys)."""
        for part in self._open:
            scores.sub_(part[block.number])
        return scores


def _row_sums(
    scores: Scores, sink: torch.Tensor | None, runs: list[range] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest score of each row, and the logarithm of the sum of the weights exp2(score - highest)."""
    assert scores.empty_rows is not None
    highest = scores.q.new_full(scores.rows, torch.finfo(scores.dtype).min)
    total = torch.zeros_like(highest)
    room = scores.workspace()
    for row_block in scores.row_blocks(runs):
        queries = scores.split(scores.queries(row_block.rows))
        for block in scores.blocks(row_block):
            found = scores.compute(block, queries, room).view(block.shape)
            before = highest[block.lines]
            now = torch.maximum(before, found.amax(-1))
            added = found.sub_(now[..., None]).exp2_().sum(-1)
            total[block.lines] = total[block.lines] * (before - now).exp2_() + added
            highest[block.lines] = now
    log2_sum = total.log2_().masked_fill_(scores.empty_rows, 0)
    if sink is not None:
        above = (highest + log2_sum).double() / LOG2E - sink.double()
        log2_sum += (F.softplus(-above) * LOG2E).to(log2_sum.dtype)
    return highest, log2_sum
