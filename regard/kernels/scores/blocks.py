"""Scores of one block after the other, in workspaces that are used again: what streaming forward and back begins with.

Scores are kept in units of log 2, so that a weight is `exp2` of a difference: exp2 costs the same for every number,
where exp is slow for -inf and for what underflows.

In this file a block has `units` = batch rows x key/value heads and `lines` = query heads of a group x rows; the same
memory is also looked at as (batch, heads, rows, keys).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.core.backend import Operands, Relative
from regard.kernels.scores.centres import centres
from regard.kernels.scores.diagonals import spread
from regard.kernels.scores.formulas import Dots, Formula, TanhSums
from regard.kernels.scores.layout import Layout, Part, Strip
from regard.kernels.scores.workspace import Workspace
from regard.mechanisms import Softmax
from regard.mechanisms.scores.base import AroundCentre, TanhSum

LOG2E = 1 / math.log(2)


@dataclass(frozen=True)
class Block:
    """Some rows and keys of some heads; `hidden` is -inf where the pattern hides a pair and 0 elsewhere."""

    rows: range
    keys: range
    number: int  # of the part
    part: Part
    shape: tuple[int, int, int, int]  # batch, heads, rows, keys
    kv_heads: int
    columns: slice  # of the keys among the operands' keys
    hidden: torch.Tensor | None
    may_hide: bool  # -inf may stand among the scores, from the pattern, the bias or a centre

    @property
    def units(self) -> tuple[int, int, int]:
        """The same shape as (units, lines, keys)."""
        batch, heads, rows, keys = self.shape
        return batch * self.kv_heads, heads // self.kv_heads * rows, keys

    @property
    def heads(self) -> slice:
        """The query heads."""
        group = self.shape[1] // self.kv_heads
        return slice(self.part.kv_heads.start * group, self.part.kv_heads.stop * group)

    @property
    def lines(self) -> tuple[slice, slice, slice]:
        """Where the rows are in (batch, heads, q_len, ...)."""
        return self.part.batch, self.heads, slice(self.rows.start, self.rows.stop)

    def place(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where the block is in (batch or 1, heads or 1, q_len or 1, keys or 1)."""
        whole = *self.lines, self.columns
        return tuple(slice(None) if size == 1 else here for size, here in zip(shape, whole, strict=True))

    def of(self, tile: torch.Tensor) -> torch.Tensor:
        """The block's heads of a tile (batch or 1, heads or 1, rows, keys)."""
        return tile[self.place((*tile.shape[:2], 1, 1))]


class Scores:
    """The scores of a problem: scaled, capped, biased and hidden, block by block; v is not looked at.

    Args:
        layout: how they are cut.
        operands: the tensors of the call.
        lonely: rows that see no key, (batch, heads, q_len), known after a forward pass; what they hold is not read.
        learns: are gradients sent to them?
    """

    def __init__(
        self, layout: Layout, operands: Operands, lonely: torch.Tensor | None = None, learns: bool = False
    ) -> None:
        problem = layout.problem
        self.layout, self.problem, self.grid = layout, problem, operands.grid
        self.dtype = torch.promote_types(operands.q.dtype, torch.float32)
        self.lonely = lonely
        self.q = operands.q.to(self.dtype).unflatten(1, (problem.kv_heads, problem.group))
        self.k = operands.k.to(self.dtype)
        self.parts = layout.parts
        self.keys = self.split(self.k)
        bias = operands.bias
        if isinstance(bias, Relative):
            bias = Relative(bias.table.to(self.dtype), bias.lowest)
        self.bias = bias if bias is None or isinstance(bias, Relative) else bias.to(self.dtype)
        self._negligible = math.log2(torch.finfo(self.dtype).smallest_normal) + 26  # products with it are normal too
        self._read_score(operands, learns)

    def _read_score(self, operands: Operands, learns: bool) -> None:
        problem = self.problem
        assert isinstance(problem.mechanism, Softmax)
        score, self.centres = problem.mechanism.score, None
        if isinstance(score, AroundCentre):
            share = operands.parameters["centre"].to(self.dtype)
            share = share if self.lonely is None else share.masked_fill(self.lonely, 0)
            self.centres = centres(score, problem, operands, share)
            score = score.score
        factor = problem.scale * LOG2E if problem.softcap is None else problem.scale / problem.softcap
        self.formula: Formula = Dots(problem.scale, factor)
        if isinstance(score, TanhSum):
            self.formula = TanhSums(operands.parameters["energy"].to(self.dtype), problem.scale, factor, learns)

    @property
    def rows(self) -> tuple[int, int, int]:
        """(batch, heads, q_len)."""
        return self.problem.batch, self.problem.heads, self.problem.q_len

    def workspace(self) -> Workspace:
        """Room for the numbers of any block."""
        return Workspace(torch.empty(self.layout.largest, dtype=self.dtype, device=self.grid.device))

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Parts of (batch, kv_heads, length, dim), each (units, length, dim): views, if x is contiguous."""
        return [x[part.batch, part.kv_heads].flatten(0, 1) for part in self.parts]

    def strips(self, runs: list[range] | None = None) -> Iterator[Strip]:
        """The strips of these rows, or of all."""
        start = self.grid.q_start
        if isinstance(start, torch.Tensor):
            return self.layout.strips((int(start.min()), int(start.max())) if len(start) else (0, 0), runs)
        return self.layout.strips((start, start), runs)

    def blocks(self, strip: Strip) -> Iterator[Block]:
        """The blocks of a strip, tile by tile; the pattern is asked once for all heads of a tile."""
        here = self.grid.keys.start
        for tile in strip.tiles:
            hidden = None if tile.whole else self.hidden(strip.rows, tile.keys)
            may_hide = hidden is not None or self.bias is not None or self.centres is not None
            columns = slice(tile.keys.start - here, tile.keys.stop - here)
            for number, part in enumerate(self.parts):
                kv_heads = part.kv_heads.stop - part.kv_heads.start
                heads = kv_heads * self.problem.group
                shape = part.batch.stop - part.batch.start, heads, len(strip.rows), len(tile.keys)
                yield Block(strip.rows, tile.keys, number, part, shape, kv_heads, columns, hidden, may_hide)

    def queries(self, rows: range) -> torch.Tensor:
        """Queries as the formula takes them, (batch, kv_heads, lines, head_dim); zeros for the lonely."""
        q = self.formula.prepared(self.q[:, :, :, rows.start : rows.stop]).flatten(2, 3).contiguous()
        if self.lonely is None:
            return q
        return q.masked_fill(self.lonely[:, :, rows.start : rows.stop].reshape(*q.shape[:3], 1), 0)

    def compute(
        self, block: Block, queries: list[torch.Tensor], room: Workspace, slope: Workspace | None = None
    ) -> torch.Tensor:
        """Scores (units, lines, keys) in the workspace `room`; `slope` receives the softcap's derivative."""
        scores = room.shaped(block.units)
        self.formula.compute(block, queries[block.number], self.keys[block.number][:, block.columns], scores)
        if self.problem.softcap is not None:
            scores.tanh_()
            if slope is not None:
                torch.mul(scores, scores, out=slope.shaped(block.units)).neg_().add_(1)
            scores.mul_(self.problem.softcap * LOG2E)
        if block.may_hide:
            by_head = scores.view(block.shape)
            bias = self.bias_of(block)
            if bias is not None:
                by_head.add_(bias, alpha=LOG2E)
            if self.centres is not None:
                self.centres.add_to(block, by_head, LOG2E)
            if block.hidden is not None:
                by_head.add_(block.of(block.hidden))
        return scores

    def exponentials(self, differences: torch.Tensor) -> torch.Tensor:
        """2 to the power of scores from which the largest, or the log-sum-exp, was taken; in place.

        A bias that falls with the distance makes many weights so small that processors slow down to compute with
        them: those become 0, which is far below what rounding moves.
        """
        if self.bias is not None:
            torch.threshold_(differences, self._negligible, -math.inf)
        return differences.exp2_()

    def bias_of(self, block: Block) -> torch.Tensor | None:
        """(batch or 1, heads or 1, rows or 1, keys or 1)."""
        if isinstance(self.bias, Relative):
            table = self.bias.table if self.bias.table.shape[0] == 1 else self.bias.table[block.heads]
            _, _, rows, keys = block.shape
            found = [spread(table[:, at:], rows, keys) for at in self.distances(block)]
            return found[0][None] if len(found) == 1 else torch.stack(found)
        return None if self.bias is None else self.bias[block.place(tuple(self.bias.shape))]

    def distances(self, block: Block) -> list[int]:
        """Where the distances of a block begin in the table of a relative bias, for each batch row if they differ."""
        assert isinstance(self.bias, Relative)
        start = self.grid.q_start
        starts = start[block.part.batch].tolist() if isinstance(start, torch.Tensor) else [start]
        return [block.keys.start - (one + block.rows.stop - 1) - self.bias.lowest for one in starts]

    def hidden(self, rows: range, keys: range) -> torch.Tensor:
        """-inf where the pattern hides a pair, 0 elsewhere, (batch or 1, heads or 1, rows, keys)."""
        allowed = self.problem.pattern.evaluate(self.grid.block(rows, keys)).to(self.dtype)
        hidden = allowed.reciprocal().neg_().add_(1)  # 1 - 1/1 = 0 and 1 - 1/0 = -inf, faster than a masked fill
        return hidden if hidden.dim() == 4 else hidden[None, None]

    def lonely_rows(self) -> torch.Tensor:
        """Which rows see no key, (batch, heads, q_len), by looking at every pair that may be seen."""
        seen = torch.zeros(self.rows, dtype=torch.bool, device=self.grid.device)
        for strip in self.strips():
            for block in self.blocks(strip):
                added = torch.zeros(block.shape, dtype=self.dtype, device=self.grid.device)
                for one in (self.bias_of(block), None if block.hidden is None else block.of(block.hidden)):
                    added = added if one is None else added + one
                if self.centres is not None:
                    self.centres.add_to(block, added, LOG2E)
                seen[block.lines] |= (added != -math.inf).any(-1)
        return ~seen
