"""Mechanisms whose weights are products of features: what they share, whatever their features are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from regard.mechanisms.base import Mechanism
from regard.patterns import Causal, KeySpan, Pattern, SameDocument


@dataclass(frozen=True)
class Features:
    """The features of queries and keys, computed separately, so that a sum over keys can replace the keys.

        weight(i, j) = q_i · k_j · exp(k_log_j + Σ decay_log_t over j < t <= i) / (the sum of these over the keys)

    q: (batch, heads, q_len, features). k: (batch, kv_heads, keys, features).
    k_log: (batch, kv_heads, keys), logarithm of what each key's features were divided by; None for 0.
    decay_log: likewise, what a key's arrival multiplies everything before it with; None for 0; causal only.
    floor: a sum is raised to at least floor · Σ exp(k_log_j + Σ decay_log_t); None where features are positive.
    q_log: (batch, heads, q_len), what the queries' features were divided by; only the log-sum-exp needs it.
    """

    q: torch.Tensor
    k: torch.Tensor
    k_log: torch.Tensor | None = None
    decay_log: torch.Tensor | None = None
    floor: float | None = None
    q_log: torch.Tensor | None = None


class Kernelised(Mechanism, enrol=False):
    """A mechanism of features: `Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j)`, linear in the length."""

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = (Causal, KeySpan, SameDocument)
    has_state: ClassVar[bool] = True

    def lift(self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]) -> Features:
        """Features of queries (batch, heads, q_len, head_dim) and keys (batch, kv_heads, keys, head_dim).

        Each position is looked at alone: a later one changes no bit of an earlier one. Parameters that have a number
        for each key (`by_key`) are already cut to these keys.
        """
        raise NotImplementedError

    def feature_dim(self, head_dim: int) -> int:
        """The number of features of a vector, by which costs are estimated."""
        return head_dim
