"""Mechanisms whose weights are products of features: what they share, whatever their features are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from regard.mechanisms.base import FormulaInputs, FormulaResult, Mechanism
from regard.patterns import Causal, KeyMask, KeySpan, Pattern, SameDocument


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

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = (Causal, KeySpan, KeyMask, SameDocument)
    has_state: ClassVar[bool] = True

    def lift(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]
    ) -> Features:
        """Features of queries (batch, heads, q_len, head_dim) and keys (batch, kv_heads, keys, head_dim).

        Each position is looked at alone: a later one changes no bit of an earlier one. Parameters that have a number
        for each key (`by_key`) are already cut to these keys.
        """
        raise NotImplementedError

    def formula(self, inputs: FormulaInputs) -> FormulaResult:
        """Linear attention pair by pair in quadratic time; the linear backend computes the same faster.

            weight(i, j) = φ(q_i)·φ(k_j) e_ij / Σ_j φ(q_i)·φ(k_j) e_ij,  e_ij = exp(k_log_j + Σ decay_log_t, j < t <= i)

        Source: Transformers are RNNs, Katharopoulos et al. 2020, equation 4; for e_ij, Random Feature Attention, Peng
        et al. 2021, section 3.2, whose recurrence gives this product.
        """
        dtype = inputs.sum_dtype
        for_query_heads = inputs.for_query_heads
        # (q_len, keys), or (batch or 1, 1, q_len, keys)
        allowed = inputs.pattern.evaluate(inputs.grid)
        # Their output is zeros, even if the query holds NaN.
        empty_rows = ~allowed.any(-1, keepdim=True)

        q = inputs.q.to(dtype).masked_fill(empty_rows, 0)
        features = self.lift(q, inputs.k.to(dtype), inputs.scale, inputs.parameters)
        products = features.q @ for_query_heads(features.k).mT  # (batch, heads, q_len, keys)
        log_e = for_query_heads(_log_factors(features, allowed))
        log_e = log_e.where(allowed, -math.inf).masked_fill(empty_rows, 0)
        # e_ij divided by their sum over the keys, so that none overflows.
        normalised_e = log_e.softmax(-1)

        total = (products * normalised_e).sum(-1, keepdim=True)  # (batch, heads, q_len, 1)
        if features.floor is not None:
            total = total.clamp_min(features.floor)
        # The total is 0 where all features of the query, or of its keys, are 0.
        no_weight = empty_rows | (total == 0)
        total = total.masked_fill(no_weight, 1)
        weights = (products * normalised_e / total).masked_fill(no_weight, 0)

        q_log = 0 if features.q_log is None else features.q_log
        log_sum_exp = total.squeeze(-1).log() + log_e.logsumexp(-1) + q_log
        log_sum_exp = log_sum_exp.masked_fill(no_weight[..., 0], -math.inf)
        output = weights @ for_query_heads(inputs.v.to(dtype))
        return FormulaResult(output, log_sum_exp, weights, allowed.expand(weights.shape))

    def feature_dim(self, head_dim: int) -> int:
        """The number of features of a vector, by which costs are estimated."""
        return head_dim

    def state_shape(self, head_dim: int, v_dim: int) -> tuple[int, int]:
        return self.feature_dim(head_dim), v_dim + 1  # the last column is the denominator


def _log_factors(features: Features, allowed: torch.Tensor) -> torch.Tensor:
    """log e_ij of the allowed pairs, (batch, kv_heads, q_len or 1, keys)."""
    k_log = features.k_log
    if k_log is None:
        k_log = features.k.new_zeros(features.k.shape[:3])
    k_log = k_log[..., None, :]
    if features.decay_log is None:
        return k_log

    decays = features.decay_log[..., None, :].where(allowed, 0)  # masked keys cause no decay
    sums_from_key = decays.flip(-1).cumsum(-1).flip(-1)  # over j <= t <= i
    no_later_key = torch.zeros_like(sums_from_key[..., :1])
    sums_after_key = torch.cat([sums_from_key[..., 1:], no_later_key], dim=-1)  # j < t <= i
    return k_log + sums_after_key
