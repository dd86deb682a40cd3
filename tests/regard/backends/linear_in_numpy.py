"""Attention by features pair by pair, in NumPy and float64, and a mechanism with every logarithm, for tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from regard.mechanisms.base import Sizes
from regard.mechanisms.features import Features, Kernelised


def elu_plus_one(x: torch.Tensor) -> np.ndarray:
    """Katharopoulos et al. 2020, equation 7."""
    x = x.detach().double().numpy()
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def by_pairs(fq, fk, v, allowed, k_log=None, decay_log=None, floor=None):
    """Outputs Σ_j w_ij v_j / Σ_j w_ij and log Σ_j w_ij, of w_ij = φ(q_i)·φ(k_j) exp(k_log_j + Σ_{j<t<=i} decay_log_t).

    Args:
        fq: (batch, heads, q_len, features). fk: (batch, kv_heads, k_len, features). v: (batch, kv_heads, k_len, v_dim).
        allowed: broadcasts to (batch, heads, q_len, k_len).
        k_log: (batch, kv_heads, k_len); decay_log likewise, of the keys that the query may see.
        floor: the denominator is at least this times the sum of the exponentials.
    """
    batch, heads, q_len, _ = fq.shape
    group = heads // fk.shape[1]
    v, allowed = v.detach().double().numpy(), np.broadcast_to(allowed, (batch, heads, q_len, fk.shape[2]))
    output, log = np.zeros((batch, heads, q_len, v.shape[-1])), np.full((batch, heads, q_len), -np.inf)
    for b, h, i in np.ndindex(batch, heads, q_len):
        seen, kv = np.flatnonzero(allowed[b, h, i]), h // group
        if not len(seen):
            continue
        e = np.zeros(len(seen)) if k_log is None else k_log[b, kv, seen].copy()
        if decay_log is not None:
            fading = decay_log[b, kv, seen]
            e += [fading[at + 1 :].sum() for at in range(len(seen))]
        highest = e.max()
        weights = fk[b, kv, seen] @ fq[b, h, i] * np.exp(e - highest)
        total = weights.sum()
        if floor is not None:
            total = max(total, floor * np.exp(e - highest).sum())
        if total > 0:
            output[b, h, i], log[b, h, i] = weights @ v[b, kv, seen] / total, np.log(total) + highest
    return output, log


@dataclass(frozen=True)
class Fading(Kernelised):
    """Features as they come, with a weight for each key and a decay; `floor` for features that may be negative."""

    floor: float | None = None
    statistics: ClassVar[frozenset[str]] = frozenset({"log_sum_exp"})
    by_key: ClassVar[frozenset[str]] = frozenset({"k_log", "decay_log"})

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("k_log", "decay_log"), (sizes.batch, sizes.kv_heads, sizes.k_len))

    def lift(self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]) -> Features:
        if self.floor is None:
            q, k = q.exp(), k.exp()
        return Features(q, k, parameters["k_log"], parameters["decay_log"], self.floor)

    def __str__(self) -> str:
        return "fading"
