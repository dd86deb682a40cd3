"""Numbers for calls: drawn from a normal distribution, and exact in the dtype in which a library gets them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from regard.testing.conformance.call import Array, NeutralCall

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM = 2, 3, 5, 9, 32


def draw(*shape: int, seed: int, dtype: str = "float32") -> Array:
    """Numbers that are exact in a dtype, as float64."""
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return in_dtype(numbers, dtype)


def in_dtype(numbers: Array, dtype: str) -> Array:
    """Numbers rounded to a dtype, as float64."""
    rounded = torch.from_numpy(np.ascontiguousarray(numbers)).to(getattr(torch, dtype))
    return rounded.double().numpy()


def new_call(
    batch: int = BATCH,
    heads: int = HEADS,
    q_len: int = Q_LEN,
    k_len: int = K_LEN,
    head_dim: int = HEAD_DIM,
    *,
    kv_heads: int | None = None,
    v_dim: int | None = None,
    dtype: str = "float32",
    **options: Any,
) -> NeutralCall:
    """A call with drawn q, k and v, and where gradients are asked a drawn gradient of the output."""
    kv_heads = heads if kv_heads is None else kv_heads
    v_dim = head_dim if v_dim is None else v_dim
    q = options.pop("q", draw(batch, heads, q_len, head_dim, seed=1, dtype=dtype))
    k = options.pop("k", draw(batch, kv_heads, k_len, head_dim, seed=2, dtype=dtype))
    v = options.pop("v", draw(batch, kv_heads, k_len, v_dim, seed=3, dtype=dtype))
    if options.get("gradients"):
        options["grad_output"] = draw(batch, heads, q_len, v_dim, seed=4, dtype=dtype)
    if options.get("transform") in ("jvp", "second derivatives"):
        drawn = [draw(*x.shape, seed=seed, dtype=dtype) for seed, x in ((8, q), (9, k), (10, v))]
        options["directions"] = tuple(drawn)
    return NeutralCall(q, k, v, dtype, **options)


def drawn_mask(*shape: int, seed: int = 5) -> Array:
    """A mask that hides about a third of the pairs, and leaves each query its first key."""
    mask = np.random.default_rng(seed).random(shape) < 0.65
    mask[..., 0] = True
    return mask


def with_numbers(x: Array, place: tuple[Any, ...], number: float) -> Array:
    """A copy of x with this number at a place."""
    changed = x.copy()
    changed[place] = number
    return changed


def row_bias(row: int, number: float) -> Array:
    """A bias (1, 1, q_len, k_len) of zeros, with this number in a row."""
    return with_numbers(np.zeros((1, 1, Q_LEN, K_LEN)), (0, 0, row), number)


FLOAT32_LOWEST = float(np.finfo(np.float32).min)
INFINITY = math.inf
