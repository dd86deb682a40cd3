"""GPT-2, Llama and a model with ALiBi as their papers write them, position by position; nothing of regard computes."""

import cmath
import math
from collections.abc import Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]


def scores(w: Weights, ids: list[int], *, heads: int, kv_heads: int, style: str) -> np.ndarray:
    """(length, vocab_size) of one text; style is "gpt2", "llama" or "alibi" (Llama with ALiBi instead of rotations)."""
    x = w["embedding.weight"][ids]
    if style == "gpt2":
        x = x + w["positions.weight"][: len(ids)]
    layers = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for layer in range(layers):
        layer_weights = {
            name.split(".", 2)[2]: weight
            for name, weight in w.items()
            if name.startswith(f"blocks.{layer}.")
        }
        x = x + attention(
            layer_weights, norm(layer_weights, "attention_norm", x), heads, kv_heads, style
        )
        x = x + feed_forward(layer_weights, norm(layer_weights, "feed_forward_norm", x), style)
    return norm(w, "norm", x) @ w.get("to_vocabulary.weight", w["embedding.weight"]).T


def norm(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    if f"{name}.bias" not in w:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def attention(w: Weights, x: np.ndarray, heads: int, kv_heads: int, style: str) -> np.ndarray:
    q, k, v = (linear(w, f"attention.to_{name}", x) for name in "qkv")
    size = q.shape[-1] // heads
    out = np.zeros_like(q)
    for head in range(heads):
        mine, shared = (
            slice(group * size, (group + 1) * size) for group in (head, head * kv_heads // heads)
        )
        for i in range(len(x)):
            scores = []
            for j in range(i + 1):
                query = q[i, mine]
                key = k[j, shared]
                if style == "llama":
                    query = rotated(query, i)
                    key = rotated(key, j)
                slope = 2.0 ** (-8 * (head + 1) / heads) if style == "alibi" else 0.0
                scores.append(query @ key / math.sqrt(size) - slope * (i - j))
            weights = np.exp(np.array(scores) - max(scores))
            out[i, mine] = weights / weights.sum() @ v[: i + 1, shared]
    return linear(w, "attention.to_output", out)


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Numbers c and c + half of a head are a complex number, turned by position · 10000^(-2c / size)."""
    half = len(x) // 2
    turned = [
        complex(x[c], x[c + half]) * cmath.exp(1j * position * 10_000 ** (-c / half))
        for c in range(half)
    ]
    return np.array([number.real for number in turned] + [number.imag for number in turned])


def feed_forward(w: Weights, x: np.ndarray, style: str) -> np.ndarray:
    widened = linear(w, "feed_forward.widen", x)
    if style == "gpt2":
        hidden = (
            0.5
            * widened
            * (1 + np.tanh(math.sqrt(2 / math.pi) * (widened + 0.044715 * widened**3)))
        )
    else:
        gate = linear(w, "feed_forward.gate", x)
        hidden = gate / (1 + np.exp(-gate)) * widened
    return linear(w, "feed_forward.narrow", hidden)
