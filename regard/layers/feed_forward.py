"""The feed-forward network of a Transformer layer."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from regard.arguments import one_of, whole, yes_or_no
from regard.core.problem import checked_dropout
from regard.errors import ShapeError
from regard.layers.projection import Projection, apply_projection
from regard.layers.vectors import check_vectors

GATED = {"swiglu": nn.functional.silu, "geglu": nn.functional.gelu}
ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu-tanh": partial(nn.functional.gelu, approximate="tanh"),
    "silu": nn.functional.silu,
    **GATED,
}


class FeedForward(nn.Module):
    """The feed-forward network of a Transformer layer, applied at each position.

        act(x W1 + b1) W2 + b2,   gated: (act(x G + g) · (x W1 + b1)) W2 + b2

    Args:
        dim: size of input and output vectors.
        hidden_dim: size between the projections.
        activation: "relu", "gelu", "gelu-tanh" (GPT-2's approximation of gelu) or "silu"; or one of the gated "swiglu"
            (silu, as in Llama) and "geglu" (gelu).
        dropout: share of the hidden numbers dropped in training.
        bias: whether the projections have biases.

    Raises:
        ArgumentError: an activation that does not exist.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.3; gates: GLU Variants Improve Transformer,
    Shazeer 2020, equations 5 and 6.

    >>> FeedForward(8, 32, "swiglu", bias=False)(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        dim = whole("dim", dim, 1)
        hidden_dim = whole("hidden_dim", hidden_dim, 1)
        dropout = checked_dropout(dropout)
        bias = yes_or_no("bias", bias)
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.dim = dim
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
        if self.gate is None:
            hidden = activate(apply_projection(self.widen, x))
        else:
            hidden = activate(apply_projection(self.gate, x)) * apply_projection(self.widen, x)
        return apply_projection(self.narrow, self.dropout(hidden) if self.training else hidden)
