"""The base of programs of the compiled library that continue texts: their buffers, and the parts of a layer.

Where the weights of a model fit a processor's caches, the calls of PyTorch take longer than the products of a step. A
program computes the same formulas in float32, with sums in another order than PyTorch's, so logits differ by rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.backends.native.bands import entries_before
from regard.backends.native.program import (
    ACTIVATIONS,
    MOST_ROWS,
    MOST_STEPS,
    Attending,
    Choice,
    Program,
    Written,
)
from regard.functional.measured import is_unwatched
from regard.layers import FeedForward, MultiHeadAttention
from regard.layers.feed_forward import GATED
from regard.layers.step_program import new_attending, turn_to
from regard.positions import Learned, Rotary

# PyTorch multiplies larger matrices with several threads, and more rows in blocks.
MOST_WEIGHTS = 1 << 22
MOST_ROWS_OF_A_STEP = min(MOST_ROWS, 24)
# Of all rows of a step, whose likeliest ids a program finds itself: it sums as many exponentials as a function of the
# library would, so log-probabilities have the same bits.
MOST_LOGITS = 1 << 16  # RG_MOST_SCORES
ACTIVATION_OF_GATE = {"swiglu": "silu", "geglu": "gelu"}


class TextProgram:
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
        self._program = program
        self._head_dim = attention.head_dim
        self._rotary: Rotary | None = attention.positions
        self._positions = positions
        self._text_attentions: list[Attending] = []
        self._backs: list[int] = []  # by layer: how many entries before its own a query looks at

        self._x = program.buffer(attention.dim)
        self._normed = program.buffer(attention.dim)
        self._queries = program.buffer(attention.heads * attention.head_dim)
        self._heads = program.buffer(attention.heads * attention.value_dim)
        self._keys = program.buffer(attention.kv_heads * attention.head_dim)
        self._values = program.buffer(attention.kv_heads * attention.value_dim)
        self._hidden = program.buffer(feed_forward.widen.out_features)
        self._gate = program.buffer(feed_forward.widen.out_features)
        self._logits = program.buffer(len(table))
        self._embedding = program.embed(table, factor, self._x)

    # Parts of a layer

    def _add_norm(self, norm: Any, source: int, into: int) -> None:
        if isinstance(norm, nn.RMSNorm):
            epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
            self._program.rms_norm(source, into, norm.weight, epsilon)
        else:
            self._program.norm(source, into, norm.weight, norm.bias, norm.eps)

    def _add_text_attention(self, layer: MultiHeadAttention, source: int) -> None:
        """Self-attention of the vectors in a buffer, before its output is projected."""
        program = self._program
        for to_heads, buffer in (
            (layer.to_q, self._queries),
            (layer.to_k, self._keys),
            (layer.to_v, self._values),
        ):
            self._add_projection(to_heads, source, buffer)
        if self._rotary is not None:
            program.rotate(self._queries, self._head_dim)
            program.rotate(self._keys, self._head_dim)
        attending = new_attending(layer)
        back = entries_before(layer.pattern)
        assert back is not None
        program.attend_to_text(
            self._queries, self._keys, self._values, self._heads, attending, back
        )
        self._text_attentions.append(attending)
        self._backs.append(back)

    def _add_feed_forward(self, layer: FeedForward, source: int) -> None:
        """The hidden numbers of a feed-forward, before they are projected."""
        program = self._program
        self._add_projection(layer.widen, source, self._hidden)
        if layer.gate is None:
            program.activate(self._hidden, layer.activation)
            return
        self._add_projection(layer.gate, source, self._gate)
        program.activate(self._gate, ACTIVATION_OF_GATE[layer.activation])
        program.multiply(self._gate, self._hidden)

    def _add_projection(self, projection: Any, source: int, into: int, adds: bool = False) -> None:
        self._program.project(source, into, projection.weight, projection.bias, adds)

    # A step

    def _prepare(self, ids: torch.Tensor, position: int) -> torch.Tensor | None:
        """Room for the logits (batch, vocab_size) of the ids after `ids` (batch,), which stand at this position.

        None where PyTorch has to compute the step: for many rows, where something watches its operations, and for
        weights that a program cannot read.
        """
        if not self._may_run(ids):
            return None
        program = self._program
        if self._rotary is not None:
            turn_to(program, self._rotary, position, self._head_dim)
        if self._positions is not None:
            # Kept as an attribute, since the program reads its memory when it runs.
            self._vector = self._positions(torch.tensor([position])).to(torch.float32)
            program.add_to_rows(self._embedding, self._vector)
        logits = self._new_logits(len(ids))
        program.give(self._logits, logits)
        return logits

    def _new_logits(self, rows: int) -> torch.Tensor:
        width = self._program.width(self._logits)
        return torch.empty(rows, width, dtype=torch.float32, device="cpu")

    def _may_run(self, ids: torch.Tensor) -> bool:
        if ids.dtype != torch.int64 or ids.device.type != "cpu":
            return False
        if not 1 <= len(ids) <= MOST_ROWS_OF_A_STEP:
            return False
        return is_unwatched() and self._program.follow_weights()

    # Several steps

    def _steps_from(self, ids: torch.Tensor, position: int, steps: int) -> int:
        """How many steps from this position on `_write` may write, of those asked for; 0 as in `_prepare`."""
        if len(ids) * self._program.width(self._logits) > MOST_LOGITS or not self._may_run(ids):
            return 0
        if self._rotary is not None:
            *_, around = self._rotary.turns_around(position, self._head_dim)
            steps = min(steps, around.stop - position)
        if isinstance(self._positions, Learned):
            steps = min(steps, len(self._positions.weight) - position)
        return max(0, min(steps, MOST_STEPS))

    def _write(
        self, ids: torch.Tensor, position: int, choice: Choice
    ) -> tuple[Written, torch.Tensor]:
        """What is written after `ids` (batch,), and the logits (batch, vocab_size) of the last step that was computed.

        The choice has as many steps as `_steps_from` says.
        """
        program = self._program
        if self._rotary is not None:
            turn_to(program, self._rotary, position, self._head_dim)
        vectors = None
        if self._positions is not None:
            places = torch.arange(position, position + choice.steps)
            vectors = self._positions(places).to(torch.float32).contiguous()
        logits = self._new_logits(len(ids))
        program.give(self._logits, logits)
        written = program.write(self._logits, ids.contiguous(), position, choice, vectors)
        return written, logits


def has_known_activation(layer: FeedForward) -> bool:
    name = layer.activation
    return (ACTIVATION_OF_GATE.get(name) if name in GATED else name) in ACTIVATIONS
