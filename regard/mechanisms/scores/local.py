"""Luong's local attention with a predicted centre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.mechanisms.base import Sizes
from regard.mechanisms.scores.base import Projected, Score, check_sizes, kept_dims, multiplied
from regard.mechanisms.scores.pairs import AroundCentre


@dataclass(frozen=True)
class LocalPredictive(Score):
    """Each query predicts where to look, and sees the keys near there, the nearer the better (local-p).

        p = S · sigmoid(v_p · tanh(W_p q)),   scores = score(q, k) - (j - p)² / (2 σ²) where |j - p| <= D,   σ = D / 2

    The term is added before the softmax, so that the weights of the keys sum to one. The paper multiplies the
    weights with exp(-(j - p)² / (2 σ²)) after it and leaves their sum below one: its weights are these times their
    sum, one factor for each query, where its softmax too is over the window.

    Positions j are counted from the first key that some query of the call sees, and S is how many there are from it
    to the last one: padding changes nothing. A text that grows has another S at each step, so it cannot be
    continued with a cache; a source that stands can. The scale and softcap of a call are those of the inner score.

    Args:
        score: what is scored near the centre: Dot, General, Concat, Additive or ScaledDot.
        window: the paper's D: keys farther than this from the centre are not seen.
        query_dim: size of a query; needed where the inner score does not tell it.

    Parameters of a call: those of the inner score; `centre_weight`, W_p, (heads or 1, query_dim, query_dim), and
    `centre_energy`, v_p, (heads or 1, query_dim).

    Raises:
        ArgumentError: a window below 1, a score inside that is local itself, or no query_dim.

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.2,
    equations 9 and 10.

    >>> import regard as rg
    >>> from regard.mechanisms import Dot, LocalPredictive, Softmax
    >>> q, k, v = torch.randn(2, 1, 3, 8), torch.randn(2, 1, 50, 8), torch.randn(2, 1, 50, 8)
    >>> mechanism = Softmax(LocalPredictive(Dot(), window=10, query_dim=8))
    >>> rg.attention(q, k, v, mechanism=mechanism, parameters=mechanism.new_parameters()).shape
    torch.Size([2, 1, 3, 8])
    """

    score: Score
    window: int
    query_dim: int | None = None

    projects: ClassVar[bool] = True
    counts_keys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        window = plain("window", self.window)
        if not is_whole(window) or window < 1:
            raise ArgumentError(f"window is {shown(window)}; it is how far a key may lie from the centre, 1 or more")
        object.__setattr__(self, "window", whole("window", window))
        if self.query_dim is not None:
            kept_dims(self, "query_dim")
        if not isinstance(self.score, Score) or self.score.counts_keys:
            raise ArgumentError(
                f"{shown(self.score)} has no place in LocalPredictive; give Dot, General, Concat or Additive"
            )
        own = getattr(self.score, "query_dim", self.query_dim)
        if own is None or self.query_dim not in (None, own):
            raise ArgumentError(
                f"query_dim is {self.query_dim} beside {self.score}; the centre is predicted from whole queries, so "
                f"give their size"
            )
        object.__setattr__(self, "query_dim", own)

    @property
    def own_key_dim(self) -> bool:  # ty: ignore[incompatible-property-override]
        return self.score.own_key_dim

    def default_scale(self, head_dim: int) -> float:
        return self.score.default_scale(head_dim)

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        assert self.query_dim is not None
        return {
            **self.score.parameter_shapes(sizes),
            "centre_weight": (sizes.heads, self.query_dim, self.query_dim),
            "centre_energy": (sizes.heads, self.query_dim),
        }

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        self.score.check_dims(head_dim, key_dim)
        assert self.query_dim is not None
        check_sizes(self, (head_dim, key_dim), (self.query_dim, key_dim))

    def projected_dim(self, head_dim: int) -> int:
        return self.score.projected_dim(head_dim)

    def project(self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> Projected:
        weight, energy = parameters["centre_weight"], parameters["centre_energy"]
        centre = multiplied(multiplied(q, weight).tanh(), energy[:, None]).sigmoid()[..., 0]  # (batch, heads, q_len)
        q, k, left = self.score.project(q, k, parameters)
        return q, k, {**left, "centre": centre}

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.score.project_keys(k, parameters)

    def with_projected_keys(self) -> Score:
        return replace(self, score=self.score.with_projected_keys())

    def lowered(self) -> Score:
        return AroundCentre(self.score.lowered(), self.window)

    def __str__(self) -> str:
        return f"local_predictive({self.score}, {self.window})"
