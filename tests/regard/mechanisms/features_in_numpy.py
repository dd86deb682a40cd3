"""Attention by features in float64 NumPy, one row at a time, written from the papers; it shares no code with regard."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def positive(x: Array, omega: Array) -> Array:
    """Choromanski et al. 2021, lemma 1: φ(x) = exp(-|x|² / 2) / sqrt(m) · [exp(ω_1·x), ..., exp(ω_m·x)]."""
    return np.exp(-(x * x).sum(-1, keepdims=True) / 2) / np.sqrt(len(omega)) * np.exp(x @ omega.T)


def waves(x: Array, w: Array) -> Array:
    """Peng et al. 2021, theorem 1: φ(x) = sqrt(1 / D) [sin(w_1·x), ..., sin(w_D·x), cos(w_1·x), ..., cos(w_D·x)]."""
    return np.sqrt(1 / len(w)) * np.concatenate([np.sin(x @ w.T), np.cos(x @ w.T)], axis=-1)


def unit(x: Array) -> Array:
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


def attend(of_q: Array, of_k: Array, v: Array, allowed: NDArray[np.bool_], least: float = 0.0) -> tuple[Array, Array]:
    """Σ φ(q)·φ(k) v over Σ φ(q)·φ(k), which is at least `least` for each key; the output, and the sums.

    of_q: (batch, heads, q_len, features), of_k: (batch, kv_heads, k_len, features), v: (batch, kv_heads, k_len, v_dim),
    allowed: broadcasts to (batch, heads, q_len, k_len).
    """
    batch, heads, q_len, _ = of_q.shape
    output, sums = np.zeros((batch, heads, q_len, v.shape[-1])), np.zeros((batch, heads, q_len))
    allowed = np.broadcast_to(allowed, (batch, heads, q_len, of_k.shape[2]))
    for b, h, i in np.ndindex(batch, heads, q_len):
        keys = allowed[b, h, i].nonzero()[0]
        if len(keys):
            of_head = h // (heads // of_k.shape[1])
            alike = of_k[b, of_head, keys] @ of_q[b, h, i]
            sums[b, h, i] = max(alike.sum(), least * len(keys))
            output[b, h, i] = alike @ v[b, of_head, keys] / sums[b, h, i]
    return output, sums


def remember(of_q: Array, of_k: Array, v: Array, gate: Array, q_start: int, least: float) -> Array:
    """Peng et al. 2021, section 3.2: S = g S + (1 - g) φ(k) vᵀ, z = g z + (1 - g) φ(k), output φ(q) S / φ(q)·z.

    gate: (batch, kv_heads, k_len). φ(q)·z is at least `least` for each key, gates counted.
    """
    batch, heads, q_len, _ = of_q.shape
    output = np.zeros((batch, heads, q_len, v.shape[-1]))
    for b, h in np.ndindex(batch, heads):
        of_head = h // (heads // of_k.shape[1])
        S, z, count = np.zeros((of_k.shape[-1], v.shape[-1])), np.zeros(of_k.shape[-1]), 0.0
        for t in range(of_k.shape[2]):
            g, phi = gate[b, of_head, t], of_k[b, of_head, t]
            S, z = g * S + (1 - g) * np.outer(phi, v[b, of_head, t]), g * z + (1 - g) * phi
            count = g * count + (1 - g)
            if 0 <= t - q_start < q_len:
                query = of_q[b, h, t - q_start]
                output[b, h, t - q_start] = query @ S / max(query @ z, least * count)
    return output
