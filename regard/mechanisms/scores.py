"""How alike a query and a key are: the scores that a softmax turns into weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from regard.mechanisms.base import Sizes


class Score:
    """A score of queries and keys; a frozen declaration, compared by value.

    Whatever it multiplies queries or keys with alone is done before a backend meets them (`project`); what is left
    is a formula of pairs, and `lowered` names it.
    """

    own_key_dim: ClassVar[bool] = False  # may keys have another size than queries?
    projects: ClassVar[bool] = False  # does `project` change anything?

    def default_scale(self, head_dim: int) -> float:
        """The scale of a call that gives none: 1, for only scaled dot products have another in their paper."""
        return 1.0

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The tensors that every call is handed, by name; the first axis (heads) may also be 1."""
        return {}

    def new_parameters(self, heads: int, kv_heads: int, generator: torch.Generator | None = None) -> nn.ParameterDict:
        """What it learns, at its start."""
        return nn.ParameterDict()

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        """Raise a ShapeError unless it compares queries of head_dim with keys of key_dim."""

    def projected_dim(self, head_dim: int) -> int:
        """The head_dim of what `project` returns."""
        return head_dim

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries (batch, heads, q_len, ·) and keys (batch, kv_heads, keys, ·) as the formula of pairs takes them."""
        return q, k

    def lowered(self) -> Score:
        """The formula of pairs that is left after `project`."""
        return self


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

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.1, dot.
    """

    def lowered(self) -> Score:
        return ScaledDot()

    def __str__(self) -> str:
        return "dot"
