"""Test tensors whose sizes all differ, so that swapped axes raise an error."""

from __future__ import annotations

import torch

LAYOUTS = ("contiguous", "transposed", "expanded", "sliced", "offset")


def make_qkv(
    *,
    batch: int = 2,
    heads: int = 6,
    kv_heads: int = 3,
    q_len: int = 7,
    k_len: int = 11,
    head_dim: int = 5,
    v_dim: int = 13,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    gain: float = 1.0,
    requires_grad: bool = False,
    layout: str = "contiguous",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values from a normal distribution; the numbers are the same in every layout except "expanded".

    Args:
        gain: multiplies q, for larger scores.
        layout: "transposed" is stored as (batch, length, heads, dim), "expanded" repeats one batch row with stride 0,
            "sliced" has a gap after every number, "offset" begins inside its storage.

    Returns:
        q (batch, heads, q_len, head_dim), k (batch, kv_heads, k_len, head_dim), v (batch, kv_heads, k_len, v_dim).

    >>> q, k, v = make_qkv(layout="transposed")
    >>> q.shape, q.is_contiguous()
    (torch.Size([2, 6, 7, 5]), False)
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> torch.Tensor:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        return in_layout(gain * x, layout).detach().requires_grad_(requires_grad)

    q = draw(batch, heads, q_len, head_dim, gain=gain)
    k = draw(batch, kv_heads, k_len, head_dim)
    v = draw(batch, kv_heads, k_len, v_dim)
    return q, k, v


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The numbers of x (batch, heads, length, dim) in one of the `LAYOUTS`; "expanded" repeats the first batch row."""
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "sliced":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]
    if layout == "offset":
        return torch.cat([x.new_full((3,), torch.nan), x.flatten()])[3:].view(x.shape)
    return x
