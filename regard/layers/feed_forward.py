"""The position-wise half of a Transformer layer."""

from __future__ import annotations

import torch
from torch import nn

from regard.errors import ArgumentError

ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


class FeedForward(nn.Module):
    """`activation(x W1 + b1) W2 + b2` at each position by itself.

    Args:
        dim: size of the vectors that come and go.
        hidden_dim: size between the two projections.
        activation: "relu" as in the paper, "gelu" or "silu".
        dropout: share of the hidden numbers dropped in training.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.3.

    >>> FeedForward(8, 32)(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, dim: int, hidden_dim: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation {activation!r} does not exist; there are {', '.join(ACTIVATIONS)}")
        self.activation = activation
        self.widen = nn.Linear(dim, hidden_dim)
        self.narrow = nn.Linear(hidden_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim)."""
        return self.narrow(self.dropout(ACTIVATIONS[self.activation](self.widen(x))))
