"""What layers compute from their vectors: forget gates of softmax, decays and strengths of recurrent mechanisms."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from regard.layers.projection import Projection
from regard.mechanisms import SSD, GatedLinear
from regard.mechanisms.recurrent import Correcting, Recurrent

GLA_DIVISOR = 16  # of log decays, by which a decay begins near 1
GLA_RANK = 16  # of the product of matrices that gives decays
# Mamba-2's, between which the first rates and steps are drawn.
FIRST_RATES = (1.0, 16.0)
FIRST_STEPS = (1e-3, 0.1)


def new_forget_gates(dim: int, heads: int) -> Projection:
    """The projection of `log_forget_gates`; its bias begins with zeros."""
    projection = Projection(dim, heads)
    nn.init.zeros_(projection.bias)
    return projection


def log_forget_gates(projection: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The logarithms of the forget gates of each head, `log sigmoid(W x + b)`.

    Args:
        projection: of `new_forget_gates`, or what took its place, such as a quantised layer.
        x: (batch, length, dim).

    Returns:
        (batch, heads, length), in float32 or wider.

    Source: Forgetting Transformer, Lin et al. 2025, section 3.
    """
    gates = projection(x)
    log_gates = functional.logsigmoid(gates.to(torch.promote_types(gates.dtype, torch.float32)))

    # A NaN spreads by keys and values, to the queries that look at it.
    return log_gates.nan_to_num(0.0).transpose(1, 2)


class RecurrentGates(nn.Module):
    """Computes `log_decay` and `strength` of each vector, as the models of each mechanism do.

        strength = most_strength · sigmoid(W x),   log_decay = -rate · softplus(W' x + bias)
        SSD: strength = softplus(W' x + bias), and log_decay = -rate · strength
        GatedLinear: log_decay = logsigmoid(W' x + bias) / 16

    Decays of each channel come from head_dim numbers (GatedLinear: 16), so that W' is a product of two small matrices.

    Args:
        declared: a mechanism that takes log decays, strengths or both.
        dim: size of the vectors.
        kv_heads, head_dim: of the layer.

    Sources: Mamba-2, Dao and Gu 2024; GLA, Yang et al. 2024, section 4.4; Gated DeltaNet, Yang et al. 2025, section 3;
    Kimi Linear, Kimi Team 2025, section 3.
    """

    def __init__(self, declared: Recurrent, dim: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.declared = declared
        self.kv_heads = kv_heads
        self.to_strength = None
        self._most_strength = declared.most_strength if isinstance(declared, Correcting) else 1.0
        if declared.takes_strength and not isinstance(declared, SSD):
            self.to_strength = nn.Linear(dim, kv_heads, bias=False)
        self.to_decay: nn.Module | None = None
        self.log_rate = None
        self.bias = None
        if declared.decays_by is None:
            return

        gated_linear = isinstance(declared, GatedLinear)
        if declared.decays_by == "channel":
            decays = kv_heads * head_dim
            rank = GLA_RANK if gated_linear else head_dim
            # The last matrix is drawn first: a seed gives the weights that it always gave.
            last = nn.Linear(rank, decays, bias=gated_linear)
            self.to_decay = nn.Sequential(nn.Linear(dim, rank, bias=False), last)
        else:
            decays = kv_heads
            self.to_decay = nn.Linear(dim, decays, bias=gated_linear)
        if not gated_linear:
            log_least, log_most = map(math.log, FIRST_STEPS)
            step = (log_least + (log_most - log_least) * torch.rand(decays)).exp()
            self.log_rate = nn.Parameter(torch.empty(kv_heads).uniform_(*FIRST_RATES).log())
            self.bias = nn.Parameter(step.expm1().log())  # softplus of it is the step

    def forward(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        """`log_decay` (batch, kv_heads, length) or (..., head_dim), `strength` (batch, kv_heads, length)."""
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        gates: dict[str, torch.Tensor] = {}
        if self.to_strength is not None:
            logits = self.to_strength(vectors).to(dtype)
            strength = torch.sigmoid(logits).transpose(1, 2)
            gates["strength"] = (
                self._most_strength * strength if self._most_strength != 1 else strength
            )
        if self.to_decay is None:
            return gates

        decay = self.to_decay(vectors).to(dtype)  # (batch, length, kv_heads or kv_heads · head_dim)
        if self.log_rate is None or self.bias is None:
            gates["log_decay"] = self._by_head(functional.logsigmoid(decay) / GLA_DIVISOR)
            return gates
        step = self._by_head(functional.softplus(decay + self.bias.to(dtype)))
        rate = self.log_rate.to(dtype).exp()[:, None]
        if step.dim() == 4:  # of channels
            rate = rate[..., None]
        gates["log_decay"] = -rate * step
        if isinstance(self.declared, SSD):
            gates["strength"] = step
        return gates

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        if self.declared.decays_by == "channel":
            x = x.unflatten(-1, (self.kv_heads, -1))
        return x.transpose(1, 2)
