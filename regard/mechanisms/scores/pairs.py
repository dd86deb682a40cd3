"""Formulas of pairs, beside the dot product: what backends are asked for once queries and keys are projected."""

from __future__ import annotations

from dataclasses import dataclass

from regard.mechanisms.scores.base import Score


@dataclass(frozen=True)
class TanhSum(Score):
    """`v · tanh(q + k) * scale`, with v handed over as the parameter `energy`, (heads or 1, head_dim)."""

    def __str__(self) -> str:
        return "tanh_sum"


@dataclass(frozen=True)
class AroundCentre(Score):
    """Another formula, `scale` and softcap included, and then `- (j - p)² / (2 σ²)` where `|j - p| <= window`, σ =
    window / 2; other keys are not seen.

    p = first + S · centre, where a call's live keys are the S from `first` on, and the parameter `centre`, (batch,
    heads, q_len), says for each query which share of them lies before p.
    """

    score: Score
    window: int

    @property
    def precision(self) -> float:
        """1 / σ²."""
        return 4 / self.window**2

    def __str__(self) -> str:
        return f"around_centre({self.score}, {self.window})"
