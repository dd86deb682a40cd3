"""A layer with its norms first: attention, then feed-forward, each added to what it reads."""

from __future__ import annotations

import torch
from torch import nn

from regard.bias import ALiBi
from regard.caches import Cache, RecurrentState
from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import Pattern

NORMS = ("rms", "layer")


class Block(nn.Module):
    """`x = x + attention(norm(x))`, then `x + feed_forward(norm(x))`.

    Args:
        attention, feed_forward: its two parts, for vectors of one size.
        norm: "rms" or "layer"; epsilon: added to the mean square or variance; norm_bias: of "layer".
        bias: added to the scores of attention by distance.
        dropout: share of what each part adds that is dropped in training.

    Source: On Layer Normalization in the Transformer Architecture, Xiong et al. 2020 (norms first).
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        norm: str,
        epsilon: float,
        norm_bias: bool = True,
        bias: ALiBi | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = new_norm(norm, attention.dim, epsilon, norm_bias)
        self.attention = attention
        self.feed_forward_norm = new_norm(norm, attention.dim, epsilon, norm_bias)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)
        self.bias = bias

    def forward(
        self, x: torch.Tensor, live: Pattern | None = None, cache: Cache | RecurrentState | None = None
    ) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim); live: the keys that are no padding."""
        seen = self.attention(self.attention_norm(x), pattern=live, bias=self.bias, cache=cache)
        x = x + self.dropout(seen)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


def new_norm(kind: str, dim: int, epsilon: float, bias: bool = True) -> nn.Module:
    """A norm over vectors of `dim` numbers.

    Source: "layer", Ba et al. 2016; "rms", Root Mean Square Layer Normalization, Zhang and Sennrich 2019.
    """
    return nn.RMSNorm(dim, epsilon) if kind == "rms" else nn.LayerNorm(dim, epsilon, bias=bias)
