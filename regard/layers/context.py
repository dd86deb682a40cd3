"""A context that cross-attention reads many times and projects once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import ShapeError
from regard.kinds import shown


@dataclass(frozen=True)
class ProjectedContext:
    """Keys (batch, kv_heads, context_length, head_dim) and values (…, v_dim) of a context, for one layer.

    Made by `MultiHeadAttention.project_context`; handed to the layer as its context at every step of a decoding.
    `gate` (batch, kv_heads, context_length) belongs to mechanisms that have one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    gate: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, axes in (("keys", 4), ("values", 4), ("gate", 3)):
            one = getattr(self, name)
            if not (name == "gate" and one is None) and (not isinstance(one, torch.Tensor) or one.dim() != axes):
                raise ShapeError(f"a context's {name} is {shown(one)}; it needs a tensor of {axes} axes")

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.keys, self.values, self.gate) if x is not None)

    def without(self, hidden: torch.Tensor) -> ProjectedContext:
        """The same with zeros where a vector is hidden, (batch, context_length): whatever it held shows nowhere."""
        hidden = hidden[:, None, :, None]  # (batch, 1, context_length, 1)
        return ProjectedContext(self.keys.masked_fill(hidden, 0), self.values.masked_fill(hidden, 0), self.gate)

    def reorder(self, index: torch.Tensor) -> ProjectedContext:
        """Row i is what row `index[i]` was here."""
        gate = None if self.gate is None else self.gate.index_select(0, index)
        return ProjectedContext(self.keys.index_select(0, index), self.values.index_select(0, index), gate)
