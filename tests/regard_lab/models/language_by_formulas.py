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
        own = {
            name.split(".", 2)[2]: one
            for name, one in w.items()
            if name.startswith(f"blocks.{layer}.")
        }
        x = x + attention(own, norm(own, "attention_norm", x), heads, kv_heads, style)
        x = x + feed_forward(own, norm(own, "feed_forward_norm", x), style)
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
            slice(at * size, (at + 1) * size) for at in (head, head * kv_heads // heads)
        )
        for i in range(len(x)):
            found = []
            for j in range(i + 1):
                one = q[i, mine]
                other = k[j, shared]
                if style == "llama":
                    one = rotated(one, i)
                    other = rotated(other, j)
                slope = 2.0 ** (-8 * (head + 1) / heads) if style == "alibi" else 0.0
                found.append(one @ other / math.sqrt(size) - slope * (i - j))
            weights = np.exp(np.array(found) - max(found))
            out[i, mine] = weights / weights.sum() @ v[: i + 1, shared]
    return linear(w, "attention.to_output", out)


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Numbers c and c + half of a head are a complex number, turned by position · 10000^(-2c / size)."""
    half = len(x) // 2
    turned = [
        complex(x[c], x[c + half]) * cmath.exp(1j * position * 10_000 ** (-c / half))
        for c in range(half)
    ]
    return np.array([one.real for one in turned] + [one.imag for one in turned])


def feed_forward(w: Weights, x: np.ndarray, style: str) -> np.ndarray:
    wide = linear(w, "feed_forward.widen", x)
    if style == "gpt2":
        hidden = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    else:
        gate = linear(w, "feed_forward.gate", x)
        hidden = gate / (1 + np.exp(-gate)) * wide
    return linear(w, "feed_forward.narrow", hidden)
