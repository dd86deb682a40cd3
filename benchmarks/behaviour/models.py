"""The small model of all experiments: a decoder with a given mechanism and pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.layers import FeedForward, MultiHeadAttention
from regard.positions import Learned


class SmallDecoder(nn.Module):
    """A decoder that predicts at each position: embeddings, then pre-norm layers of attention and feed-forward.

    Args:
        vocabulary: tokens there are.
        length: positions there are, each with a learned vector; None for models that need none.
        dim, heads, layers: sizes.
        convolution: taps of a causal convolution, channel by channel, before each attention; 0 for none.
        attention: options of every MultiHeadAttention, as pattern= and mechanism=.
    """

    def __init__(
        self, *, vocabulary: int, length: int | None, dim: int, heads: int, layers: int = 2, convolution: int = 0,
        **attention: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = None if length is None else Learned(length, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, convolution, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.guess = nn.Linear(dim, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> logits (batch, length, vocabulary)."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.guess(self.norm(x))


class Layer(nn.Module):
    """An optional short convolution, attention and feed-forward, each with a residual connection."""

    def __init__(self, dim: int, heads: int, convolution: int, attention: dict[str, Any]) -> None:
        super().__init__()
        parts: list[nn.Module] = [MultiHeadAttention(dim, heads, **attention), FeedForward(dim, 4 * dim)]
        if convolution:
            parts.insert(0, ShortConvolution(dim, convolution))
        self.parts = nn.ModuleList(parts)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x  # (batch, length, dim)


class ShortConvolution(nn.Module):
    """A causal convolution: mixes each position with a few earlier ones, channel by channel.

    Source: Zoology, Arora et al. 2023, where every model compared has one.
    """

    def __init__(self, dim: int, taps: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(dim, dim, taps, padding=taps - 1, groups=dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x.mT)[..., : x.shape[1]].mT  # (batch, length, dim)
