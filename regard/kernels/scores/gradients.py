"""What the gradient of the scores sends to queries, keys and bias, block by block."""

from __future__ import annotations

import torch

from regard.core.backend import Operands, Relative
from regard.kernels.scores.blocks import Block, Scores
from regard.kernels.scores.diagonals import summed
from regard.kernels.scores.formulas import TanhSums
from regard.kernels.scores.layout import Strip

Inputs = tuple[torch.Tensor | None, ...]


def score_inputs(operands: Operands) -> Inputs:
    """All that scores are computed from and that may learn: queries, keys, the bias, v of a tanh sum, the centres."""
    bias = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
    return operands.q, operands.k, bias, operands.parameters.get("energy"), operands.parameters.get("centre")


class ScoreGradients:
    """Sums of what the blocks send: `dq` and `dk` of the operands' shapes, `dbias` of the bias' or its table's; what
    the formula and the centres of the scores receive stays with them.

    Everything is summed in the dtype of the scores.

    Args:
        scores: what is differentiated.
        bias_learns: is the gradient of the bias wanted?
        every_block: will every block be sent? Then what a block writes alone need not be zeroed before.
    """

    def __init__(self, scores: Scores, bias_learns: bool, every_block: bool) -> None:
        problem = scores.problem
        self.scores = scores
        self.dq = torch.zeros(
            problem.batch, problem.heads, problem.q_len, problem.head_dim, dtype=scores.dtype, device=scores.grid.device
        )
        self.dk = torch.zeros(scores.k.shape, dtype=scores.dtype, device=scores.grid.device)
        bias = scores.bias.table if isinstance(scores.bias, Relative) else scores.bias
        self._dk = scores.split(self.dk)
        self.dbias: torch.Tensor | None = None
        if bias is not None and bias_learns:
            self.dbias = torch.empty(bias.shape, dtype=scores.dtype, device=scores.grid.device)
        whole = *self.dq.shape[:3], self.dk.shape[2]
        self._met_once = every_block and self.dbias is not None and self.dbias.shape == whole
        if self.dbias is not None and not self._met_once:
            self.dbias.zero_()

    def open(self, strip: Strip, queries: torch.Tensor) -> None:
        """Begin a strip; `queries` are those that its scores are computed from."""
        self._strip = torch.zeros_like(queries)
        self._parts = self.scores.split(self._strip)
        self._queries = self.scores.split(queries)
        if self.dbias is not None and self._met_once:
            self._clear_between(strip)

    def send(self, block: Block, gradient: torch.Tensor, slope: torch.Tensor | None) -> None:
        """Add what one block sends; `gradient` (units, lines, keys), by the scores as they are compared, is used up."""
        if self.dbias is not None:
            self._to_bias(block, gradient.view(block.shape))
        if self.scores.centres is not None:
            self.scores.centres.send(block, gradient.view(block.shape))
        if slope is not None:
            gradient.mul_(slope)
        one, columns = block.number, block.columns
        q, dq = self._queries[one], self._parts[one]
        k, dk = (x[one][:, columns] for x in (self.scores.keys, self._dk))
        self.scores.formula.send(block, gradient, q, k, dq, dk)

    def close(self, rows: range) -> None:
        """End a strip."""
        self.dq[:, :, rows.start : rows.stop] = self._strip.view(*self.dq.shape[:2], len(rows), -1)

    def by_input(self, inputs: Inputs) -> Inputs:
        """What was sent to each of `score_inputs`, in its dtype."""
        formula, centres = self.scores.formula, self.scores.centres
        to_energy = formula.to_energy if isinstance(formula, TanhSums) else None
        sent = self.dq, self.dk, self.dbias, to_energy, None if centres is None else centres.to_share
        return tuple(None if x is None or to is None else x.to(to.dtype) for x, to in zip(sent, inputs, strict=True))

    def _to_bias(self, block: Block, gradient: torch.Tensor) -> None:
        assert self.dbias is not None
        if isinstance(self.scores.bias, Relative):
            self._to_table(block, gradient)
            return
        place = self.dbias[block.place(tuple(self.dbias.shape))]
        if self._met_once:
            place.copy_(gradient)
            return
        repeated = [axis for axis, size in enumerate(place.shape) if size == 1 and gradient.shape[axis] > 1]
        place.add_(gradient.sum(repeated, keepdim=True) if repeated else gradient)

    def _clear_between(self, strip: Strip) -> None:
        """Zeros for the keys that the strip does not look at, so that fresh memory is written once."""
        assert self.dbias is not None
        here, rows = self.scores.grid.keys, slice(strip.rows.start, strip.rows.stop)
        ends = [here.start, *(end for tile in strip.tiles for end in (tile.keys.start, tile.keys.stop)), here.stop]
        for start, stop in zip(ends[::2], ends[1::2], strict=True):
            self.dbias[:, :, rows, start - here.start : stop - here.start] = 0

    def _to_table(self, block: Block, gradient: torch.Tensor) -> None:
        assert self.dbias is not None
        starts = self.scores.distances(block)
        by_start = gradient if len(starts) > 1 else gradient.sum(0, keepdim=True)
        for at, one in zip(starts, by_start, strict=True):
            place = self.dbias if self.dbias.shape[0] == 1 else self.dbias[block.heads]
            sums = summed(one if self.dbias.shape[0] > 1 else one.sum(0, keepdim=True))
            place[:, at : at + sums.shape[1]] += sums
