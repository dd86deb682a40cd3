"""The layers of the Transformer models: attention and feed-forward, each with a norm and a residual."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.bias import ALiBi
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState
from regard.patterns import Pattern

NORMS = ("rms", "layer")
NORM_PLACES = ("pre", "post")  # before each part, or after it
AttentionLayer = MultiHeadAttention | LatentAttention
Sublayer = Callable[[torch.Tensor], torch.Tensor]


def new_norm(kind: str, dim: int, epsilon: float, bias: bool = True) -> nn.Module:
    """A norm over vectors of size `dim`: "rms" or "layer".

    Source: "layer", Ba et al. 2016; "rms", Root Mean Square Layer Normalization, Zhang and Sennrich 2019.
    """
    if kind == "rms":
        return nn.RMSNorm(dim, epsilon)
    return nn.LayerNorm(dim, epsilon, bias=bias)


def residual(
    x: torch.Tensor,
    part: Sublayer,
    norm: nn.Module,
    dropout: nn.Dropout,
    *,
    norm_first: bool = True,
) -> torch.Tensor:
    """`x + part(norm(x))`, or without `norm_first` `norm(x + part(x))`; dropout applies to what the part returns.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.1 (norm last); On Layer Normalization in the
    Transformer Architecture, Xiong et al. 2020 (norm first).
    """
    added = part(norm(x) if norm_first else x)
    if dropout.training:  # else the call would only cost time
        added = dropout(added)
    x = x + added
    return x if norm_first else norm(x)


class Block(nn.Module):
    """A Transformer layer with norms first: `x = x + attention(norm(x))`, then `x + feed_forward(norm(x))`.

    `norm`, `epsilon` and `norm_bias` are those of `new_norm`; `bias` is added to the scores.

    Source: On Layer Normalization in the Transformer Architecture, Xiong et al. 2020 (norms first).
    """

    def __init__(
        self,
        attention: AttentionLayer,
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
        self,
        x: torch.Tensor,
        live: Pattern | None = None,
        cache: Cache | RecurrentState | None = None,
        first_values: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim); live: the keys that are not padding.

        `first_values` are those of the first layer, for a layer that adds them to its own; `positions` those to which
        Rotary rotates x, where they do not follow the cache.
        """
        options: dict[str, Any] = {"pattern": live, "bias": self.bias, "cache": cache}
        if positions is not None:
            options["positions"] = positions
        if getattr(self.attention, "value_mix", None) is not None:  # LatentAttention has none
            options["first_values"] = first_values

        def attend(x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, **options)

        x = residual(x, attend, self.attention_norm, self.dropout)
        return residual(x, self.feed_forward, self.feed_forward_norm, self.dropout)


class Residual(nn.Module):
    """A residual connection with its norm: `x + part(norm(x))` ("pre") or `norm(x + part(x))` ("post").

    `norm` is here a place, one of NORM_PLACES; the kind is always a LayerNorm.
    """

    def __init__(self, dim: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm == "pre"

    def forward(self, x: torch.Tensor, part: Sublayer) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim)."""
        return residual(x, part, self.norm, self.dropout, norm_first=self.norm_first)


class EncoderLayer(nn.Module):
    """A layer of the encoder: self-attention, then feed-forward."""

    def __init__(
        self, attention: MultiHeadAttention, feed_forward: FeedForward, norm: str, dropout: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.around_attention = Residual(attention.dim, norm, dropout)
        self.around_feed_forward = Residual(attention.dim, norm, dropout)

    def forward(self, x: torch.Tensor, live: Pattern | None) -> torch.Tensor:
        """x: (batch, length, dim); live: the keys that are not padding."""
        x = self.around_attention(x, lambda x: self.attention(x, pattern=live))
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """A layer of the decoder: causal self-attention, cross-attention, then feed-forward."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        norm: str,
        dropout: float,
    ) -> None:
        super().__init__()
        dim = self_attention.dim
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.around_self_attention = Residual(dim, norm, dropout)
        self.around_cross_attention = Residual(dim, norm, dropout)
        self.around_feed_forward = Residual(dim, norm, dropout)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        *,
        live: Pattern | None,
        context_live: Pattern | None,
        context_q_start: int | None,
    ) -> torch.Tensor:
        """(batch, length, dim) -> (batch, length, dim), reading context (batch, context_length, dim).

        `live` and `context_live`: the keys that are not padding. `context_q_start`: the position of the first of x
        among those of the context, for a cross pattern that compares them.
        """

        def read_target(x: torch.Tensor) -> torch.Tensor:
            return self.self_attention(x, pattern=live)

        def read_context(x: torch.Tensor) -> torch.Tensor:
            return self.cross_attention(x, context, pattern=context_live, q_start=context_q_start)

        x = self.around_self_attention(x, read_target)
        x = self.around_cross_attention(x, read_context)
        return self.around_feed_forward(x, self.feed_forward)

    def step(
        self,
        x: torch.Tensor,
        context: ProjectedContext,
        cache: Cache | RecurrentState,
        *,
        readers: int,
        mask: torch.Tensor | None,
        context_q_start: int | None,
    ) -> torch.Tensor:
        """One decoding step, (batch, dim) -> (batch, dim).

        `context` holds batch / `readers` texts. Each is read by `readers` neighbouring batch rows, which become its
        queries. `mask` is added to the scores of its keys: -inf at padding. `context_q_start` is as in `forward`.
        """

        def read_target(x: torch.Tensor) -> torch.Tensor:
            return self.self_attention(x[:, None], cache=cache)[:, 0]

        def read_context(x: torch.Tensor) -> torch.Tensor:
            queries = x.view(-1, readers, self.cross_attention.dim)
            read = self.cross_attention(queries, context, bias=mask, q_start=context_q_start)
            # (texts, readers, dim) -> (batch, dim)
            return read.flatten(0, 1)

        x = self.around_self_attention(x, read_target)
        x = self.around_cross_attention(x, read_context)
        return self.around_feed_forward(x, self.feed_forward)
