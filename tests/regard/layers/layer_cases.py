"""Small layers in float64 and vectors for them, whose sizes cannot be confused."""

import torch

from regard.layers import MultiHeadAttention
from regard.positions import Rotary

EXACT = {"rtol": 0, "atol": 1e-12}
DIM = 12
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 3


def make_layer(**options) -> MultiHeadAttention:
    """A causal layer with grouped heads and Rotary, in float64; options change it."""
    torch.manual_seed(1)
    defaults = {
        "dim": DIM,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "pattern": "causal",
        "positions": Rotary(dims=2),
    }
    return MultiHeadAttention(**{**defaults, **options}).double()


def texts(batch: int = 2, length: int = 9, dim: int = DIM) -> torch.Tensor:
    return torch.randn(batch, length, dim, dtype=torch.float64)


def split_heads(joined: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, heads · size) -> (batch, heads, length, size)."""
    return joined.unflatten(-1, (heads, -1)).transpose(1, 2)
