"""The base of programs of the compiled library: buffers for the vectors of a few rows, and the parts of a layer.

Where the weights of a model fit a processor's caches, the calls of PyTorch take longer than the products of a few rows.
A program computes the same formulas in float32, with sums in another order than PyTorch's, so results differ by
rounding.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import torch
from torch import nn

from regard.backends.native.program import ACTIVATIONS, Attending, Form, Program
from regard.functional.measured import is_unwatched
from regard.layers import FeedForward, MultiHeadAttention
from regard.layers.feed_forward import GATED
from regard.positions import Rotary

MOST_WEIGHTS = 1 << 22  # PyTorch multiplies larger matrices with several threads
ACTIVATION_OF_GATE = {"swiglu": "silu", "geglu": "gelu"}


class ModelProgram:
    """A program without operations, its buffers for layers of one size, and what adds the parts of a layer to it.

    Args:
        program: one without operations.
        attention: the self-attention of a layer; all layers have its sizes.
        feed_forward: the feed-forward of a layer; all layers have its sizes.
    """

    def __init__(
        self, program: Program, attention: MultiHeadAttention, feed_forward: FeedForward
    ) -> None:
        self._program = program
        self._head_dim = attention.head_dim
        self._rotary: Rotary | None = attention.positions

        self._x = program.buffer(attention.dim)
        self._normed = program.buffer(attention.dim)
        self._queries = program.buffer(attention.heads * attention.head_dim)
        self._heads = program.buffer(attention.heads * attention.value_dim)
        self._keys = program.buffer(attention.kv_heads * attention.head_dim)
        self._values = program.buffer(attention.kv_heads * attention.value_dim)
        self._hidden = program.buffer(feed_forward.widen.out_features)
        self._gate = program.buffer(feed_forward.widen.out_features)

    def of_new_texts(self) -> Self:
        """A program of the same model that reads nothing yet."""
        other = copy(self)
        other._program, attendings = self._program.copy()
        other._attend_with(attendings)
        return other

    def _attend_with(self, attendings: dict[Attending, Attending]) -> None:
        """Use these attentions in the place of those that were copied."""
        raise NotImplementedError(f"{type(self).__name__} has no attentions of its own")

    def has_weights(self) -> bool:
        """Whether the weights are where they were when the program was made."""
        return self._program.has_weights()

    def forms(self) -> list[Form]:
        """The shapes and dtypes that the weights have now."""
        return self._program.forms()

    def _add_norm(self, norm: Any, source: int, into: int) -> None:
        if isinstance(norm, nn.RMSNorm):
            epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
            self._program.rms_norm(source, into, norm.weight, epsilon)
        else:
            self._program.norm(source, into, norm.weight, norm.bias, norm.eps)

    def _begin_part(self, norm: nn.Module, norm_first: bool) -> int:
        """The buffer that a part of a layer reads: x, or x after its norm."""
        if not norm_first:
            return self._x
        self._add_norm(norm, self._x, self._normed)
        return self._normed

    def _end_part(
        self, buffer: int, to_output: nn.Module, norm: nn.Module, norm_first: bool
    ) -> None:
        """Add the projected output of a part to x. Where norms come last, x is normalised after that."""
        self._add_projection(to_output, buffer, self._x, adds=True)
        if not norm_first:
            self._add_norm(norm, self._x, self._x)

    def _add_queries_keys_and_values(self, layer: MultiHeadAttention, source: int) -> None:
        """Those of the vectors in a buffer, rotated to their positions."""
        self._add_projection(layer.to_q, source, self._queries)
        self._add_projection(layer.to_k, source, self._keys)
        self._add_projection(layer.to_v, source, self._values)
        if self._rotary is not None:
            self._program.rotate(self._queries, self._head_dim)
            self._program.rotate(self._keys, self._head_dim)

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

    def _give_rows(self, buffer: int, rows: int) -> torch.Tensor:
        """New memory for a buffer, (rows, width)."""
        width = self._program.width(buffer)
        memory = torch.empty(rows, width, dtype=torch.float32, device="cpu")
        self._program.give(buffer, memory)
        return memory

    def _can_read(self, ids: torch.Tensor, most: int) -> bool:
        """Whether the program may run now, for so many ids at most: PyTorch must see no operation of it."""
        if ids.dtype != torch.int64 or ids.device.type != "cpu":
            return False
        if not 1 <= ids.numel() <= most:
            return False
        return is_unwatched() and self._program.follow_weights()


def has_known_activation(layer: FeedForward) -> bool:
    name = layer.activation
    return (ACTIVATION_OF_GATE.get(name) if name in GATED else name) in ACTIVATIONS


def sizes_of(attention: MultiHeadAttention, feed_forward: FeedForward) -> tuple[int, ...]:
    """The sizes of the buffers that a layer needs."""
    sizes = (attention.dim, attention.heads, attention.kv_heads, attention.head_dim)
    return *sizes, attention.value_dim, feed_forward.widen.out_features
