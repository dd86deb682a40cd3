"""The base of programs of the compiled library that continue texts; see `ModelProgram`."""

from __future__ import annotations

import torch
from torch import nn

from regard.backends.native.bands import entries_before
from regard.backends.native.program import (
    MOST_ROWS,
    MOST_STEPS,
    Attending,
    Choice,
    Program,
    Written,
)
from regard.layers import FeedForward, MultiHeadAttention
from regard.layers.step_program import new_attending, turn_to
from regard.positions import Learned
from regard_lab.models.model_program import ModelProgram

MOST_ROWS_OF_A_STEP = min(MOST_ROWS, 24)  # PyTorch multiplies more rows in blocks
# Of all rows of a step, whose likeliest ids a program finds itself: it sums as many exponentials as a function of the
# library would, so log-probabilities have the same bits.
MOST_LOGITS = 1 << 16  # RG_MOST_SCORES


class TextProgram(ModelProgram):
    """A program that appends an id to each text and scores the next; subclasses add the layers between.

    Args:
        program: one without operations.
        attention: the self-attention of a layer; all layers have its sizes.
        feed_forward: the feed-forward of a layer; all layers have its sizes.
        table: the embeddings (vocab_size, dim), which are multiplied by `factor`.
        positions: the module whose vectors are added to them, or None.
    """

    def __init__(
        self,
        program: Program,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        table: torch.Tensor,
        factor: float,
        positions: nn.Module | None,
    ) -> None:
        super().__init__(program, attention, feed_forward)
        self._positions = positions
        self._text_attentions: list[Attending] = []
        self._backs: list[int] = []  # by layer: how many entries before its own a query looks at
        self._logits = program.buffer(len(table))
        self._embedding = program.embed(table, factor, self._x)

    def _attend_with(self, attendings: dict[Attending, Attending]) -> None:
        self._text_attentions = [attendings[attending] for attending in self._text_attentions]

    def _add_text_attention(self, layer: MultiHeadAttention, source: int) -> None:
        """Self-attention of the vectors in a buffer, before its output is projected."""
        self._add_queries_keys_and_values(layer, source)
        attending = new_attending(layer)
        back = entries_before(layer.pattern)
        assert back is not None
        self._program.attend_to_text(
            self._queries, self._keys, self._values, self._heads, attending, back
        )
        self._text_attentions.append(attending)
        self._backs.append(back)

    # A step

    def _prepare(self, ids: torch.Tensor, position: int) -> torch.Tensor | None:
        """Room for the logits (batch, vocab_size) of the ids after `ids` (batch,), which stand at this position.

        None where PyTorch has to compute the step: for many rows, where something watches its operations, and for
        weights that a program cannot read.
        """
        if not self._can_read(ids, MOST_ROWS_OF_A_STEP):
            return None
        program = self._program
        if self._rotary is not None:
            turn_to(program, self._rotary, position, self._head_dim)
        if self._positions is not None:
            # Kept as an attribute, since the program reads its memory when it runs.
            self._vector = self._positions(torch.tensor([position])).to(torch.float32)
            program.add_to_rows(self._embedding, self._vector)
        return self._give_rows(self._logits, len(ids))

    # Several steps

    def _steps_from(self, ids: torch.Tensor, position: int, steps: int) -> int:
        """How many steps from this position on `_write` may write, of those asked for; 0 as in `_prepare`."""
        if len(ids) * self._program.width(self._logits) > MOST_LOGITS or not self._can_read(
            ids, MOST_ROWS_OF_A_STEP
        ):
            return 0
        if self._rotary is not None:
            *_, around = self._rotary.turns_around(position, self._head_dim)
            steps = min(steps, around.stop - position)
        if isinstance(self._positions, Learned):
            steps = min(steps, len(self._positions.weight) - position)
        return max(0, min(steps, MOST_STEPS))

    def _write(
        self, ids: torch.Tensor, position: int, place: int, choice: Choice
    ) -> tuple[Written, torch.Tensor]:
        """What is written after `ids` (batch,), and the logits (batch, vocab_size) of the last step that was computed.

        The choice has at most as many steps as `_steps_from` says.

        Args:
            position: of the ids in their texts.
            place: of their keys and values in memory.
        """
        program = self._program
        if self._rotary is not None:
            turn_to(program, self._rotary, position, self._head_dim)
        vectors = None
        if self._positions is not None:
            places = torch.arange(position, position + choice.steps)
            vectors = self._positions(places).to(torch.float32).contiguous()
        logits = self._give_rows(self._logits, len(ids))
        written = program.write(self._logits, ids.contiguous(), place, choice, vectors)
        return written, logits
