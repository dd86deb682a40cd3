"""Scores that are dot products: of queries and keys as they are, or of queries that a matrix turned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from regard.mechanisms.base import Sizes
from regard.mechanisms.scores.base import Projected, Score, check_sizes, kept_dims, multiplied


@dataclass(frozen=True)
class ScaledDot(Score):
    """Scores are scaled dot products: `q · k * scale`, with scale 1 / sqrt(head_dim) unless given.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.1.
    """

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5

    def __str__(self) -> str:
        return "scaled_dot"


@dataclass(frozen=True)
class Dot(Score):
    """Scores are dot products as they are: `q · k * scale`, with scale 1 unless given.

    Luong's local-m, which looks at D keys on either side of the query's own position, is a pattern and no score of
    its own: `pattern=SlidingWindow(2 * D)` with this score and `q_start` as the aligned position of the first query.

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.1, dot;
    section 3.2, local-m.
    """

    def lowered(self) -> Score:
        return ScaledDot()

    def __str__(self) -> str:
        return "dot"


@dataclass(frozen=True)
class General(Score):
    """Scores are dot products through a matrix: `qᵀ W k * scale`, with scale 1 unless given.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.

    Parameters of a call: `weight`, W, (heads or 1, query_dim, key_dim).

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.1, general.

    >>> import regard as rg
    >>> from regard.mechanisms import General, Softmax
    >>> q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 9)
    >>> mechanism = Softmax(General(query_dim=8, key_dim=4))
    >>> rg.attention(q, k, v, mechanism=mechanism, parameters=mechanism.new_parameters(heads=6)).shape
    torch.Size([2, 6, 5, 9])
    """

    query_dim: int
    key_dim: int

    own_key_dim: ClassVar[bool] = True
    projects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        kept_dims(self, "query_dim", "key_dim")

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"weight": (sizes.heads, self.query_dim, self.key_dim)}

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        check_sizes(self, (head_dim, key_dim), (self.query_dim, self.key_dim))

    def projected_dim(self, head_dim: int) -> int:
        return self.key_dim

    def project(self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> Projected:
        return multiplied(q, parameters["weight"].mT), k, {}  # qᵀ W k = (Wᵀ q) · k

    def lowered(self) -> Score:
        return ScaledDot()

    def __str__(self) -> str:
        return f"general({self.query_dim}, {self.key_dim})"
