"""Scores of one block after the other in reused memory, and the gradients of the scores' inputs.

Scores are in units of log 2, so that a weight is `exp2` of a difference. exp2 is equally fast for every number; exp is
slow for -inf and for numbers that underflow.

In this file a block has `units` = batch rows x key/value heads and `lines` = query heads of a group x rows. The same
memory is also viewed as (batch, heads, rows, keys).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from regard.backends.far import LOG2E, drawn_in
from regard.backends.scores.blocking import Blocking, RowBlock, ScoreBlock, Workspace, is_whole
from regard.backends.scores.formulas import Centres, Dots, TanhSums, visible_span
from regard.core.backend import Operands, Relative, numbers_of
from regard.mechanisms import Softmax
from regard.mechanisms.scores import AroundCentre, TanhSum
from regard.patterns.grid import four_axes


class BlockedScores:
    """The scores of a problem: scaled, capped, biased and masked, block by block; v is not read.

    Args:
        blocking: the sizes of their blocks.
        operands: the tensors of the call.
        empty_rows: (batch, heads, q_len), known after a forward pass; their queries are not read.
        learns: whether gradients are computed.
    """

    def __init__(
        self,
        blocking: Blocking,
        operands: Operands,
        empty_rows: torch.Tensor | None = None,
        learns: bool = False,
    ) -> None:
        problem = blocking.problem
        self.blocking = blocking
        self.problem = problem
        self.grid = operands.grid
        self.dtype = torch.promote_types(operands.q.dtype, torch.float32)
        self.empty_rows = empty_rows
        self.q = operands.q.to(self.dtype).unflatten(1, (problem.kv_heads, problem.group))
        self.k = operands.k.to(self.dtype)
        self.lots = blocking.lots
        self.keys = self.split(self.k)
        self.bias = self._read_bias(operands)
        self.centres = self._read_centres(operands)
        self.formula = self._read_formula(operands, learns)
        # products of it and other weights are normal numbers too
        self._negligible = math.log2(torch.finfo(self.dtype).smallest_normal) + 26

    def _read_bias(self, operands: Operands) -> torch.Tensor | Relative | None:
        bias = operands.bias
        if bias is None:
            return None
        if isinstance(bias, Relative):
            return Relative(drawn_in(bias.table.to(self.dtype)), bias.lowest)
        return bias.to(self.dtype)

    def _read_centres(self, operands: Operands) -> Centres | None:
        mechanism = self.problem.mechanism
        assert isinstance(mechanism, Softmax)
        if not isinstance(mechanism.score, AroundCentre):
            return None
        share = operands.parameters["centre"].to(self.dtype)
        if self.empty_rows is not None:
            share = share.masked_fill(self.empty_rows, 0)
        first, count = visible_span(self.problem, operands.grid)
        return Centres(mechanism.score, share, first, count, operands.grid)

    def _read_formula(self, operands: Operands, learns: bool) -> Dots | TanhSums:
        problem = self.problem
        assert isinstance(problem.mechanism, Softmax)
        score = problem.mechanism.score
        if isinstance(score, AroundCentre):
            score = score.score
        # Before a softcap scores are in units of the cap, else in units of log 2.
        if problem.softcap is None:
            factor = problem.scale * LOG2E
        else:
            factor = problem.scale / problem.softcap
        if isinstance(score, TanhSum):
            energy = operands.parameters["energy"].to(self.dtype)
            return TanhSums(energy, problem.scale, factor, learns)
        return Dots(problem.scale, factor)

    @property
    def rows(self) -> tuple[int, int, int]:
        return self.problem.batch, self.problem.heads, self.problem.q_len

    def workspace(self) -> Workspace:
        memory = torch.empty(self.blocking.largest, dtype=self.dtype, device=self.grid.device)
        return Workspace(memory)

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(batch, kv_heads, length, dim) divided into lots, each (units, length, dim); views if x is contiguous."""
        return [x[lot.batch, lot.kv_heads].flatten(0, 1) for lot in self.lots]

    def row_blocks(self, runs: list[range] | None = None) -> Iterator[RowBlock]:
        """The row blocks of these rows; of all rows by default."""
        start = self.grid.q_start
        if not isinstance(start, torch.Tensor):
            return self.blocking.row_blocks((start, start), runs)
        starts = (int(start.min()), int(start.max())) if len(start) else (0, 0)
        return self.blocking.row_blocks(starts, runs)

    def blocks(self, row_block: RowBlock) -> Iterator[ScoreBlock]:
        """The score blocks of a row block, run by run; the pattern is evaluated once for all heads of a run."""
        first_key = self.grid.keys.start
        for run in row_block.runs:
            hidden = None if is_whole(run) else self.hidden(row_block.rows, run.keys)
            may_hide = hidden is not None or self.bias is not None or self.centres is not None
            columns = slice(run.keys.start - first_key, run.keys.stop - first_key)
            for number, lot in enumerate(self.lots):
                batch = lot.batch.stop - lot.batch.start
                kv_heads = lot.kv_heads.stop - lot.kv_heads.start
                heads = kv_heads * self.problem.group
                yield ScoreBlock(
                    rows=row_block.rows,
                    keys=run.keys,
                    number=number,
                    lot=lot,
                    shape=(batch, heads, len(row_block.rows), len(run.keys)),
                    kv_heads=kv_heads,
                    columns=columns,
                    hidden=hidden,
                    may_hide=may_hide,
                )

    def queries(self, rows: range) -> torch.Tensor:
        """Queries prepared for the formula, (batch, kv_heads, lines, head_dim); zeros for empty rows."""
        q = self.formula.prepared(self.q[:, :, :, rows.start : rows.stop])
        q = q.flatten(2, 3).contiguous()
        if self.empty_rows is None:
            return q
        empty_lines = self.empty_rows[:, :, rows.start : rows.stop].reshape(*q.shape[:3], 1)
        return q.masked_fill(empty_lines, 0)

    def compute(
        self,
        block: ScoreBlock,
        queries: list[torch.Tensor],
        room: Workspace,
        slope: Workspace | None = None,
    ) -> torch.Tensor:
        """Scores (units, lines, keys) in the workspace `room`; `slope` receives the softcap's derivative."""
        scores = room.shaped(block.units)
        keys = self.keys[block.number][:, block.columns]
        self.formula.compute(block, queries[block.number], keys, scores)
        if self.problem.softcap is not None:
            scores.tanh_()
            if slope is not None:
                torch.mul(scores, scores, out=slope.shaped(block.units)).neg_().add_(1)
            scores.mul_(self.problem.softcap * LOG2E)
        if block.may_hide:
            self._add_terms(block, scores.view(block.shape))
        return scores

    def _add_terms(self, block: ScoreBlock, scores: torch.Tensor) -> None:
        """Add bias, centres and the mask of the pattern to scores (batch, heads, rows, keys)."""
        bias = self.bias_of(block)
        if bias is not None:
            if not isinstance(self.bias, Relative):  # a table is drawn in already
                bias = drawn_in(bias)
            scores.add_(bias, alpha=LOG2E)
        if self.centres is not None:
            self.centres.add_to(block, scores, LOG2E)
        if block.hidden is None:
            return
        if bias is None:
            scores.add_(block.of(block.hidden))
        else:  # slower, but a bias may be NaN or inf at masked pairs
            scores.masked_fill_(block.of(block.hidden) == -math.inf, -math.inf)

    def exponentials(self, differences: torch.Tensor) -> torch.Tensor:
        """2 to the power of scores minus their largest, or minus the log-sum-exp; in place.

        A bias that decreases with the distance makes many weights so small that processors compute slowly with them.
        Those become 0, an error far below rounding.
        """
        if self.bias is not None:
            torch.threshold_(differences, self._negligible, -math.inf)
        return differences.exp2_()

    def bias_of(self, block: ScoreBlock) -> torch.Tensor | None:
        """(batch or 1, heads or 1, rows or 1, keys or 1)."""
        if self.bias is None:
            return None
        if not isinstance(self.bias, Relative):
            return self.bias[block.place(tuple(self.bias.shape))]
        table = self.bias.table
        if table.shape[0] > 1:
            table = table[block.heads]
        _, _, rows, keys = block.shape
        by_row = [spread(table[:, first:], rows, keys) for first in self.distances(block)]
        return by_row[0][None] if len(by_row) == 1 else torch.stack(by_row)

    def distances(self, block: ScoreBlock) -> list[int]:
        """Index of a block's first distance in the table of a relative bias, for each batch row if they differ."""
        assert isinstance(self.bias, Relative)
        start = self.grid.q_start
        starts = start[block.lot.batch].tolist() if isinstance(start, torch.Tensor) else [start]
        last_row = block.rows.stop - 1
        return [block.keys.start - (start + last_row) - self.bias.lowest for start in starts]

    def hidden(self, rows: range, keys: range) -> torch.Tensor:
        """-inf where the pattern masks a pair, 0 elsewhere, (batch or 1, heads or 1, rows, keys)."""
        allowed = self.problem.pattern.evaluate(self.grid.block(rows, keys))
        numbers = four_axes(allowed).to(self.dtype)
        # 1 - 1/1 = 0 and 1 - 1/0 = -inf, faster than a masked fill
        return numbers.reciprocal().neg_().add_(1)

    def find_empty_rows(self) -> torch.Tensor:
        """Which rows may look at no key, (batch, heads, q_len), by evaluating every run."""
        has_key = torch.zeros(self.rows, dtype=torch.bool, device=self.grid.device)
        for row_block in self.row_blocks():
            for block in self.blocks(row_block):
                terms = torch.zeros(block.shape, dtype=self.dtype, device=self.grid.device)
                bias = self.bias_of(block)
                if bias is not None:
                    terms = terms + bias
                if block.hidden is not None:
                    terms = terms + block.of(block.hidden)
                if self.centres is not None:
                    self.centres.add_to(block, terms, LOG2E)
                has_key[block.lines] |= (terms != -math.inf).any(-1)
        return ~has_key


Inputs = tuple[torch.Tensor | None, ...]


def score_inputs(operands: Operands) -> Inputs:
    """The inputs of scores that may need gradients: queries, keys, the bias, v of a tanh sum, the centres."""
    bias = numbers_of(operands.bias)
    energy = operands.parameters.get("energy")
    centre = operands.parameters.get("centre")
    return operands.q, operands.k, bias, energy, centre


class ScoreGradients:
    """Gradients, added up over the blocks: `dq` and `dk` in the shapes of the operands, `dbias` in that of the bias or
    its table. Gradients of v of a tanh sum and of centres are added up in the formula and in the centres.

    All sums have the dtype of the scores.

    Args:
        scores: the scores that are differentiated.
        bias_learns: whether the bias needs a gradient.
        every_block: whether `send` is called for every block. If so, memory that one block writes is not zeroed first.
    """

    def __init__(self, scores: BlockedScores, bias_learns: bool, every_block: bool) -> None:
        problem = scores.problem
        device = scores.grid.device
        self.scores = scores
        rows = (problem.batch, problem.heads, problem.q_len)
        self.dq = torch.zeros(*rows, problem.head_dim, dtype=scores.dtype, device=device)
        self.dk = torch.zeros(scores.k.shape, dtype=scores.dtype, device=device)
        self._dk = scores.split(self.dk)
        self.dbias: torch.Tensor | None = None
        self._writes_once = False
        bias = numbers_of(scores.bias)
        if bias is not None and bias_learns:
            self.dbias = torch.empty(bias.shape, dtype=scores.dtype, device=device)
            self._writes_once = every_block and bias.shape == (*rows, self.dk.shape[2])
            if not self._writes_once:
                self.dbias.zero_()

    def open(self, row_block: RowBlock, queries: torch.Tensor) -> None:
        """Begin a row block; `queries` are as prepared for its scores."""
        self._dq = torch.zeros_like(queries)
        self._dq_by_lot = self.scores.split(self._dq)
        self._queries = self.scores.split(queries)
        if self.dbias is not None and self._writes_once:
            self._clear_between(row_block)

    def send(self, block: ScoreBlock, gradient: torch.Tensor, slope: torch.Tensor | None) -> None:
        """Add the gradients of one block; `gradient` (units, lines, keys), of its final scores, is overwritten."""
        if self.dbias is not None:
            self._send_to_bias(block, gradient.view(block.shape))
        if self.scores.centres is not None:
            self.scores.centres.send(block, gradient.view(block.shape))
        if slope is not None:
            gradient.mul_(slope)
        lot = block.number
        k = self.scores.keys[lot][:, block.columns]
        dk = self._dk[lot][:, block.columns]
        q = self._queries[lot]
        self.scores.formula.send(block, gradient, q, k, self._dq_by_lot[lot], dk)

    def close(self, rows: range) -> None:
        self.dq[:, :, rows.start : rows.stop] = self._dq.view(*self.dq.shape[:2], len(rows), -1)

    def by_input(self, inputs: Inputs) -> Inputs:
        """The gradient of each of `score_inputs`, in its dtype."""
        formula = self.scores.formula
        centres = self.scores.centres
        to_energy = formula.to_energy if isinstance(formula, TanhSums) else None
        to_share = None if centres is None else centres.to_share
        gradients: list[torch.Tensor | None] = []
        sums = (self.dq, self.dk, self.dbias, to_energy, to_share)
        for gradient, x in zip(sums, inputs, strict=True):
            if gradient is None or x is None:
                gradients.append(None)
            else:
                gradients.append(gradient.to(x.dtype))
        return tuple(gradients)

    def _send_to_bias(self, block: ScoreBlock, gradient: torch.Tensor) -> None:
        assert self.dbias is not None
        if isinstance(self.scores.bias, Relative):
            self._send_to_table(block, gradient)
            return
        place = self.dbias[block.place(tuple(self.dbias.shape))]
        if self._writes_once:
            place.copy_(gradient)
            return
        repeated = [
            axis for axis, size in enumerate(place.shape) if size == 1 and gradient.shape[axis] > 1
        ]
        place.add_(gradient.sum(repeated, keepdim=True) if repeated else gradient)

    def _clear_between(self, row_block: RowBlock) -> None:
        """Write zeros for the keys outside the runs of the row block, so that new memory is written once."""
        assert self.dbias is not None
        keys = self.scores.grid.keys
        rows = slice(row_block.rows.start, row_block.rows.stop)
        gap_start = keys.start
        for run in row_block.runs:
            self.dbias[:, :, rows, gap_start - keys.start : run.keys.start - keys.start] = 0
            gap_start = run.keys.stop
        self.dbias[:, :, rows, gap_start - keys.start :] = 0

    def _send_to_table(self, block: ScoreBlock, gradient: torch.Tensor) -> None:
        assert self.dbias is not None
        has_one_head = self.dbias.shape[0] == 1
        place = self.dbias if has_one_head else self.dbias[block.heads]
        firsts = self.scores.distances(block)
        by_start = gradient if len(firsts) > 1 else gradient.sum(0, keepdim=True)
        for first, by_head in zip(firsts, by_start, strict=True):
            sums = summed(by_head.sum(0, keepdim=True) if has_one_head else by_head)
            place[:, first : first + sums.shape[1]] += sums


def spread(numbers: torch.Tensor, rows: int, keys: int) -> torch.Tensor:
    """The block with entry (i, j) = numbers[rows - 1 - i + j]: one number for each diagonal.

    Args:
        numbers: (heads, rows + keys - 1), the lower left corner's first.

    Returns:
        (heads, rows, keys).

    >>> spread(torch.arange(4)[None], 2, 3).tolist()
    [[[1, 2, 3], [0, 1, 2]]]
    """
    return numbers[:, : rows + keys - 1].unfold(1, keys, 1).flip(1)


def summed(block: torch.Tensor) -> torch.Tensor:
    """The sums of a block's diagonals, (heads, rows + keys - 1), from the lower left on; the transpose of `spread`.

    Args:
        block: (heads, rows, keys).

    >>> summed(torch.ones(1, 2, 3)).tolist()
    [[1.0, 2.0, 2.0, 1.0]]
    """
    heads, rows, keys = block.shape
    width = rows + keys - 1
    # (heads, rows + 1, width): zeros before each row, and one row behind.
    padded = F.pad(block, (rows - 1, 0, 0, 1))
    diagonals = padded.as_strided((heads, rows, width), ((rows + 1) * width, width + 1, 1))
    return diagonals.sum(1)
