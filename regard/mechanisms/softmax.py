"""Softmax attention, the mechanism of the Transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from regard.arguments import shown
from regard.errors import ArgumentError
from regard.mechanisms.base import OPTIONS, STATISTICS, Mechanism, Projected
from regard.mechanisms.scores import ScaledDot, Score, check_computable, check_projected

# It is immutable, so one serves all; PyTorch 2.11 cannot compile a default_factory.
SCALED_DOT = ScaledDot()


def _same_as_score(name: str) -> Any:
    """A property that is what the score declares under this name, or its method."""
    return property(lambda self: getattr(self.score, name))


@dataclass(frozen=True)
class Softmax(Mechanism):
    """Weights are the softmax of the scores over the allowed keys, the output their weighted mean of the values.

    Source: Attention Is All You Need, Vaswani et al. 2017, equation 1.

    >>> print(Softmax())
    softmax(scaled_dot)
    """

    score: Score = SCALED_DOT

    options: ClassVar[frozenset[str]] = frozenset(OPTIONS)
    statistics: ClassVar[frozenset[str]] = frozenset(STATISTICS)
    is_softmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.score, Score):
            raise ArgumentError(
                f"Softmax's score is {shown(self.score)}; give one of regard.mechanisms, such as Dot()"
            )
        check_computable(self.score)

    own_key_dim = _same_as_score("own_key_dim")
    is_dot_product = _same_as_score("is_dot_product")
    projects = _same_as_score("projects")
    counts_keys = _same_as_score("counts_keys")
    check_dims = _same_as_score("check_dims")
    projected_dim = _same_as_score("projected_dim")
    project_keys = _same_as_score("project_keys")
    parameter_shapes = _same_as_score("parameter_shapes")
    default_scale = _same_as_score("default_scale")

    def key_dim(self, head_dim: int) -> int:
        return getattr(self.score, "key_dim", None) or head_dim

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Projected:
        projected = self.score.project(q, k, parameters)
        check_projected(self.score, q, k, projected)
        return projected

    def with_projected_keys(self) -> Softmax:
        return Softmax(self.score.with_projected_keys())

    def lowered(self) -> Softmax:
        return Softmax(self.score.lowered())

    def new_parameters(
        self, heads: int = 1, kv_heads: int | None = None, generator: torch.Generator | None = None
    ) -> nn.ParameterDict:
        return self.score.new_parameters(heads, heads if kv_heads is None else kv_heads, generator)

    def __str__(self) -> str:
        return f"{self.text_name}({self.score!s})"
