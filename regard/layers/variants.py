"""Variants of multi-head attention that have settings of their own; `MultiHeadAttention` is given them as parts.

A part only holds settings, so several layers may share one. The layer holds what is learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from regard.arguments import real
from regard.errors import ArgumentError, ShapeError


@dataclass(frozen=True)
class Difference:
    """Each head subtracts the output of a second one, which has queries and keys of its own.

        norm(head_1 - λ · head_2) · (1 - lambda_init),   λ = exp(λ_{q1} · λ_{k1}) - exp(λ_{q2} · λ_{k2}) + lambda_init

    The four vectors and the weights of the norm are learned. Values have 2 · head_dim numbers by default. A call, its
    pattern, bias, sinks, statistics and cache then have 2 · heads heads: all first heads, then all second ones.

    Args:
        lambda_init: λ of a new layer, approximately; between 0 and 1. The paper has 0.8 - 0.6 · exp(-0.3 · layer), with
            layers counted from 0: 0.2 to 0.8.

    Raises:
        ArgumentError: a number outside of this range.

    Source: Differential Transformer, Ye et al. 2024, section 2.1, equations 1 to 3.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=32, heads=4, differential=Difference(lambda_init=0.8))
    >>> layer(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    lambda_init: float

    def __post_init__(self) -> None:
        lambda_init = real("lambda_init", self.lambda_init)
        if not 0 < lambda_init < 1:
            raise ArgumentError(
                f"lambda_init is {lambda_init}; it is the λ of a new layer, a number between 0 and 1"
            )
        object.__setattr__(self, "lambda_init", lambda_init)

    def build(self, head_dim: int, value_dim: int) -> HeadDifference:
        """The module of a layer with these sizes."""
        return HeadDifference(head_dim, value_dim, self.lambda_init)


class HeadDifference(nn.Module):
    """`norm(head_1 - λ · head_2) · (1 - lambda_init)` for outputs (batch, 2 · heads, length, v_dim)."""

    def __init__(self, head_dim: int, value_dim: int, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init
        self.vectors = nn.Parameter(0.1 * torch.randn(4, head_dim))  # λ_q1, λ_k1, λ_q2, λ_k2
        self.norm = nn.RMSNorm(value_dim, 1e-5)

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """(batch, 2 · heads, length, v_dim) -> (batch, heads, length, v_dim)."""
        exp_1, exp_2 = (self.vectors[0::2] * self.vectors[1::2]).sum(-1).exp()
        weight = exp_1 - exp_2 + self.lambda_init  # λ
        head_1, head_2 = heads.chunk(2, 1)
        return self.norm(head_1 - weight * head_2) * (1 - self.lambda_init)


@dataclass(frozen=True)
class ValueResidual:
    """A layer adds the values of the first layer to its own: `v = mix_0 · v + mix_1 · first_values`.

    The mix is learned, as `value_mix` of the layer. Each call takes the values: `layer(x, first_values=...)`, with
    `first_values = layers[0].values(x)` of the vectors that the first layer gets.

    Args:
        first_share: mix_1 when training begins, from 0 to 1; mix_0 is then 1 - first_share.

    Raises:
        ArgumentError: a share outside of this range.

    Source: Value Residual Learning, Zhou et al. 2024.

    >>> from regard.layers import MultiHeadAttention
    >>> first = MultiHeadAttention(dim=32, heads=4)
    >>> later = MultiHeadAttention(dim=32, heads=4, value_residual=ValueResidual())
    >>> x = torch.zeros(2, 5, 32)
    >>> later(first(x), first_values=first.values(x)).shape
    torch.Size([2, 5, 32])
    """

    first_share: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_share", real("first_share", self.first_share, 0, 1))

    def new_mix(self) -> nn.Parameter:
        """The learned mix of a layer, (2,)."""
        return nn.Parameter(torch.tensor([1 - self.first_share, self.first_share]))


def mix_values(
    values: torch.Tensor, first_values: torch.Tensor | None, value_mix: torch.Tensor | None
) -> torch.Tensor:
    """The values of a layer, mixed with those of the first layer if this one has a mix.

    Args:
        values: of the layer, (batch, kv_heads, length, v_dim).
        first_values: of the first layer, of the same shape; None for a layer without a mix.
        value_mix: (2,), or None.
    """
    if value_mix is None:
        if first_values is not None:
            raise ArgumentError(
                "first_values are for layers made with value_residual=ValueResidual()"
            )
        return values
    if first_values is None:
        raise ArgumentError(
            "this layer has value_residual, so it needs first_values=layers[0].values(x)"
        )
    if first_values.shape != values.shape:
        raise ShapeError(
            f"first_values have shape {tuple(first_values.shape)}, and the values {tuple(values.shape)}"
        )
    return value_mix[0] * values + value_mix[1] * first_values
