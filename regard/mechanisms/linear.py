"""The linear transformer: a feature map in place of the exponential of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from regard.errors import ArgumentError
from regard.kinds import shown
from regard.mechanisms.base import STATISTICS
from regard.mechanisms.feature_maps import EluPlusOne, FeatureMap
from regard.mechanisms.features import Features, Kernelised


@dataclass(frozen=True)
class LinearTransformer(Kernelised):
    """Weights are dot products of features, so that their sum over keys is a matrix, whatever the length.

        output_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i) Σ_j φ(k_j)

    Time and memory are linear in the length; a text is continued in constant memory (`regard.caches.RecurrentState`).

    Args:
        feature_map: φ, a FeatureMap: EluPlusOne() unless given.

    Raises:
        ArgumentError: a feature map that is none.

    Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 4 to 7.

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, pattern="causal", mechanism=LinearTransformer()).shape
    torch.Size([2, 8, 5, 16])
    """

    feature_map: FeatureMap = field(default_factory=EluPlusOne)

    tells: ClassVar[frozenset[str]] = frozenset(STATISTICS)

    def __post_init__(self) -> None:
        if not isinstance(self.feature_map, FeatureMap):
            raise ArgumentError(
                f"feature_map is {shown(self.feature_map)}; give one of regard.mechanisms, such as EluPlusOne(), or a "
                f"frozen dataclass that derives from FeatureMap"
            )

    def lift(self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]) -> Features:
        return Features(self.feature_map(q), self.feature_map(k))

    def feature_dim(self, head_dim: int) -> int:
        return self.feature_map.dim(head_dim)

    def __str__(self) -> str:
        return f"linear_transformer({self.feature_map})"
