"""Dropout while the blocks go by."""

from __future__ import annotations

import torch

from regard.core.backend import Operands
from regard.kernels.dropout import row_states, write_kept
from regard.kernels.scores.blocks import Block, Scores
from regard.kernels.scores.layout import Strip


class Dropping:
    """Which weights stay, block by block; `factor` is what they are multiplied with."""

    def __init__(self, scores: Scores, operands: Operands) -> None:
        problem = scores.problem
        self.dropout, self.seed, self.scores = problem.dropout, operands.dropout_seed, scores
        self.factor = 0.0 if self.dropout >= 1 else 1 / (1 - self.dropout)
        self._room = scores.workspace() if self.dropout else None

    def open(self, strip: Strip) -> None:
        """Begin a strip."""
        if self._room is not None:
            problem, grid = self.scores.problem, self.scores.grid
            rows = grid.block(strip.rows, grid.keys)
            self._states = row_states(self.seed, problem.batch, problem.heads, rows)

    def kept(self, block: Block) -> torch.Tensor | None:
        """1 or 0 for every weight of a block, (units, lines, keys); None without dropout."""
        if self._room is None:
            return None
        grid = self.scores.grid.block(block.rows, block.keys)
        states = self._states[block.part.batch, block.heads]
        return write_kept(self._room.shaped(block.units), self.dropout, states, grid.k_pos)
