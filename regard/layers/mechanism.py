"""The mechanism of an attention layer with its learned parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.errors import ArgumentError
from regard.mechanisms import Mechanism
from regard.mechanisms.base import Sizes, takes
from regard.patterns import Causal

GATE = "gate"  # a parameter that is computed from each input vector instead of learned


class LayerMechanism(nn.Module):
    """A mechanism inside a layer: the declaration, its learned parameters and its projection of the keys.

    Args:
        declared: the mechanism as the user gave it.
        heads, kv_heads, head_dim: of the layer.
        context_dim: size of the vectors that are projected to keys.

    Raises:
        ArgumentError, ShapeError: numbers of heads or sizes that the mechanism does not support.
    """

    def __init__(self, declared: Mechanism, heads: int, kv_heads: int, head_dim: int, context_dim: int) -> None:
        super().__init__()
        self.declared = declared
        self.key_dim = declared.key_dim(head_dim)  # of the layer's keys, before a score's projection
        if declared.shares_keys and kv_heads != heads:
            raise ArgumentError(
                f"{declared}: its queries are its keys, so kv_heads {kv_heads} must be heads {heads}; leave it out"
            )
        declared.check_dims(head_dim, self.key_dim)
        # A score may project its keys. They are projected once, so that a cache holds the projected keys.
        self.called = declared.with_projected_keys()
        self.learned = declared.new_parameters(heads, kv_heads)
        self.needed = tuple(self.called.parameter_shapes(Sizes(1, heads, kv_heads, 1)))
        self.to_gate = nn.Linear(context_dim, kv_heads) if GATE in self.needed else None

    def extra_repr(self) -> str:
        return str(self.declared)

    def keys(self, k: torch.Tensor) -> torch.Tensor:
        """Keys (batch, kv_heads, length, key_dim) projected as the score compares and caches them: (..., kept_dim)."""
        return self.declared.project_keys(k, dict(self.learned))

    @property
    def kept_dim(self) -> int:
        """Size of a key in a cache."""
        heads = next((x.shape[0] for x in self.learned.values()), 1)
        one = next(iter(self.learned.values()), torch.empty(0, device="cpu"))
        return self.keys(one.new_empty(1, heads, 0, self.key_dim)).shape[-1]

    @property
    def reason_against_caches(self) -> str | None:
        """The reason why a cache of keys cannot continue a text with this mechanism, or None."""
        if self.to_gate is not None:
            return "its gates scale the past, and a cache of keys holds no gates; use kind='state'"
        if not takes(self.declared, Causal):
            return "it is not causal, so later tokens would change earlier outputs"
        if self.declared.counts_keys:
            return "its score depends on the number of keys, so later tokens would change earlier outputs"
        return None

    def gate(self, vectors: torch.Tensor) -> torch.Tensor | None:
        """The share of the past that each vector (batch, length, dim) keeps, 0 to 1: (batch, kv_heads, length)."""
        return None if self.to_gate is None else torch.sigmoid(self.to_gate(vectors)).transpose(1, 2)

    def options(self, gate: torch.Tensor | None) -> dict[str, Any]:
        """The options `mechanism` and `parameters` for a call of `attention`."""
        parameters = {name: self.learned[name] for name in self.needed if name != GATE}
        if gate is not None:
            parameters[GATE] = gate
        return {"mechanism": self.called, "parameters": parameters or None}
