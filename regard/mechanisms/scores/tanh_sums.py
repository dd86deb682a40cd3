"""Scores from a hidden layer with tanh: Bahdanau's additive one and Luong's concat, the same algebra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from regard.arguments import yes_or_no
from regard.mechanisms.base import Sizes
from regard.mechanisms.scores.base import Projected, Score, check_sizes, kept_dims, multiplied
from regard.mechanisms.scores.pairs import TanhSum


@dataclass(frozen=True)
class _OfHiddenLayer(Score):
    """What the two share: they become `v · tanh(q' + k')` of projected queries and keys."""

    query_dim: int
    key_dim: int
    hidden: int
    projected_keys: bool = False

    own_key_dim: ClassVar[bool] = True
    projects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        kept_dims(self, "query_dim", "key_dim", "hidden")
        yes_or_no(f"{type(self).__name__}'s projected_keys", self.projected_keys)

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        key_size = self.hidden if self.projected_keys else self.key_dim
        check_sizes(self, (head_dim, key_dim), (self.query_dim, key_size))

    def projected_dim(self, head_dim: int) -> int:
        return self.hidden

    def project(self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> Projected:
        keys = k if self.projected_keys else self.project_keys(k, parameters)
        return self._project_queries(q, parameters), keys, {"energy": parameters["energy"]}

    def _project_queries(self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError

    def with_projected_keys(self) -> Score:
        return replace(self, projected_keys=True)

    def lowered(self) -> Score:
        return TanhSum()

    def _text(self, name: str) -> str:
        keys = ", projected_keys=true" if self.projected_keys else ""
        return f"{name}({self.query_dim}, {self.key_dim}, {self.hidden}{keys})"


@dataclass(frozen=True)
class Additive(_OfHiddenLayer):
    """Scores are `v · tanh(W q + U k) * scale`, with scale 1 unless given.

    The tanh of all pairs is never in memory at once.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden: size of what tanh is taken of.
        projected_keys: keys are handed over as U k, of size `hidden` (`project_keys` makes them), so that a cache keeps
            them so; `key_weight` is not asked for then.

    Parameters of a call: `query_weight`, W, (heads or 1, hidden, query_dim); `key_weight`, U, (kv_heads or 1, hidden,
    key_dim); `energy`, v, (heads or 1, hidden).

    Source: Neural Machine Translation by Jointly Learning to Align and Translate, Bahdanau et al. 2015, appendix A.1.2.

    >>> import regard as rg
    >>> from regard.mechanisms import Additive, Softmax
    >>> q, k, v = torch.randn(2, 1, 1, 8), torch.randn(2, 1, 7, 4), torch.randn(2, 1, 7, 4)
    >>> mechanism = Softmax(Additive(query_dim=8, key_dim=4, hidden=16))
    >>> rg.attention(q, k, v, mechanism=mechanism, parameters=mechanism.new_parameters()).shape
    torch.Size([2, 1, 1, 4])
    """

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        shapes = {
            "query_weight": (sizes.heads, self.hidden, self.query_dim),
            "key_weight": (sizes.kv_heads, self.hidden, self.key_dim),
            "energy": (sizes.heads, self.hidden),
        }
        if self.projected_keys:
            del shapes["key_weight"]
        return shapes

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return multiplied(k, parameters["key_weight"])

    def _project_queries(self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return multiplied(q, parameters["query_weight"])

    def __str__(self) -> str:
        return self._text("additive")


@dataclass(frozen=True)
class Concat(_OfHiddenLayer):
    """Scores are `v · tanh(W [q; k]) * scale`, with scale 1 unless given.

    It is `Additive` with W's columns side by side. Query heads that share a key head share W, since its right half
    belongs to the key; each has its own v.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden: size of what tanh is taken of.
        projected_keys: keys are handed over as W's right half times k, of size `hidden` (`project_keys` makes them), so
            that a cache keeps them so.

    Parameters of a call: `weight`, W, (kv_heads or 1, hidden, query_dim + key_dim); `energy`, v, (heads or 1, hidden).

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.1, concat.

    >>> import regard as rg
    >>> from regard.mechanisms import Concat, Softmax
    >>> q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 4)
    >>> mechanism = Softmax(Concat(query_dim=8, key_dim=4, hidden=16))
    >>> rg.attention(q, k, k, mechanism=mechanism, parameters=mechanism.new_parameters(heads=6, kv_heads=3)).shape
    torch.Size([2, 6, 5, 4])
    """

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {
            "weight": (sizes.kv_heads, self.hidden, self.query_dim + self.key_dim),
            "energy": (sizes.heads, self.hidden),
        }

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return multiplied(k, parameters["weight"][..., self.query_dim :])

    def _project_queries(self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return multiplied(q, parameters["weight"][..., : self.query_dim])

    def __str__(self) -> str:
        return self._text("concat")
