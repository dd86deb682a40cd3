"""The position-wise half of a Transformer layer."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from regard.arguments import whole, yes_or_no
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown
from regard.layers.projection import Projection
from regard.layers.refusing import check_vectors
from regard.problem import checked_dropout

GATED = {"swiglu": nn.functional.silu, "geglu": nn.functional.gelu}
ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": partial(nn.functional.gelu, approximate="tanh"),
    "silu": nn.functional.silu,
    **GATED,
}


class FeedForward(nn.Module):
    """`activation(x W1 + b1) W2 + b2` at each position by itself; gated, `(act(x G + g) · (x W1 + b1)) W2 + b2`.

    Args:
        dim: size of the vectors that come and go.
        hidden_dim: size between the projections.
        activation: "relu" as in the paper, "gelu" (or its estimate by a tanh, GPT-2's "gelu-tanh"), "silu"; gated,
            "swiglu" by silu as in Llama, "geglu" by gelu.
        dropout: share of the hidden numbers dropped in training.
        bias: do the projections have biases?

    Raises:
        ArgumentError: an activation that does not exist.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.3; gates: GLU Variants Improve Transformer,
    Shazeer 2020, equations 5 and 6.

    >>> FeedForward(8, 32, "swiglu", bias=False)(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self, dim: int, hidden_dim: int, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        dim, hidden_dim = whole("dim", dim, 1), whole("hidden_dim", hidden_dim, 1)
        dropout, bias = checked_dropout(dropout), yes_or_no("bias", bias)
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise ArgumentError(f"activation {shown(activation)} does not exist; there are {', '.join(ACTIVATIONS)}")
        self.activation, self.dim = activation, dim
        self.gate = Projection(dim, hidden_dim, bias=bias) if activation in GATED else None
        self.widen = Projection(dim, hidden_dim, bias=bias)
        self.narrow = Projection(hidden_dim, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim)."""
        check_vectors("x", x, getattr(self.widen, "weight", None))
        if x.shape[-1:] != (self.dim,):
            raise ShapeError(f"x has shape {tuple(x.shape)}; this layer needs (..., {self.dim})")
        activate = ACTIVATIONS[self.activation]
        hidden = activate(self.widen(x)) if self.gate is None else activate(self.gate(x)) * self.widen(x)
        return self.narrow(self.dropout(hidden) if self.training else hidden)
