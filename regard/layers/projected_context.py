"""The keys and values of a context, which are projected once and attended to by many calls of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.arguments import in_memory, shown
from regard.errors import ShapeError
from regard.reprs import brief


@brief
@dataclass(frozen=True)
class ProjectedContext:
    """Projected keys (batch, kv_heads, context_length, head_dim) and values (..., v_dim) of a context, for one layer.

    `MultiHeadAttention.project_context` makes it once; decoding passes it as the context of every step. `gate`
    (batch, kv_heads, context_length) is for mechanisms that have one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    gate: torch.Tensor | None = None

    def __post_init__(self) -> None:
        _check_axes("keys", self.keys, 4)
        _check_axes("values", self.values, 4)
        if self.gate is not None:
            _check_axes("gate", self.gate, 3)

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        gate_bytes = 0 if self.gate is None else self.gate.nbytes
        return self.keys.nbytes + self.values.nbytes + gate_bytes

    def without(self, hidden: torch.Tensor) -> ProjectedContext:
        """The same with zeros at hidden vectors, (batch, context_length), so that NaN cannot reach the output."""
        hidden = hidden[:, None, :, None]  # (batch, 1, context_length, 1)
        keys = self.keys.masked_fill(hidden, 0)
        values = self.values.masked_fill(hidden, 0)
        return ProjectedContext(keys, values, self.gate)

    def reorder(self, index: torch.Tensor) -> ProjectedContext:
        """The context whose batch row i is batch row `index[i]` of this one."""
        index = in_memory("the index of rows", index).to(self.keys.device)
        keys = self.keys.index_select(0, index)
        values = self.values.index_select(0, index)
        gate = None if self.gate is None else self.gate.index_select(0, index)
        return ProjectedContext(keys, values, gate)


def _check_axes(name: str, tensor: object, axes: int) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != axes:
        raise ShapeError(f"a context's {name} is {shown(tensor)}; it needs a tensor of {axes} axes")
