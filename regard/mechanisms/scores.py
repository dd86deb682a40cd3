"""How alike a query and a key are: the scores that a softmax turns into weights, and those of the papers.

Factors of queries alone or of keys alone are applied first (`project`); backends compute the formula of pairs that is
left: scaled dot products, `TanhSum`, and both `AroundCentre`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import check_fields, count_of, shown, whole, yes_or_no
from regard.errors import ArgumentError, ShapeError
from regard.mechanisms.base import Comparing, Projected, Sizes
from regard.patterns.arguments import at_least_one
from regard.patterns.registry import Declared, Registry


class Score(Comparing, Declared, enrol=False):
    """A score of queries and keys; a frozen declaration, compared by value.

    Factors of queries alone or keys alone are applied before a backend gets them (`project`); a formula of pairs is
    left, which `lowered` names. Subclasses enrol themselves, so that the text of a mechanism may name them.
    """

    registry: ClassVar[Registry] = Registry("score")

    def default_scale(self, head_dim: int) -> float:
        """The scale of a call that gives none: 1, except for scaled dot products."""
        return 1.0

    def new_parameters(
        self, heads: int, kv_heads: int, generator: torch.Generator | None = None
    ) -> nn.ParameterDict:
        """Initial parameters: each number uniform within ±1 / sqrt(the numbers that are summed with it)."""
        heads = whole("heads", heads, 1)
        kv_heads = whole("kv_heads", kv_heads, 1)
        shapes = self.parameter_shapes(Sizes(1, heads, kv_heads, 1))
        return nn.ParameterDict(
            {name: _draw_parameter(shape, generator) for name, shape in shapes.items()}
        )


def check_computable(score: Score) -> None:
    """Raise an ArgumentError unless backends know the formula of pairs that a score leaves, and call its `project`."""
    kind = type(score)
    if kind.project is not Comparing.project and not score.projects:
        raise ArgumentError(
            f"{kind.__name__} defines project, which is called only where the class has `projects = True`; add that"
        )
    left = score.lowered()
    # What is left may be a score that is lowered in its turn, such as Dot.
    is_dot_product = left.is_dot_product or left.lowered().is_dot_product
    if not is_dot_product and not isinstance(left, TanhSum | AroundCentre):
        raise ArgumentError(
            f"no backend knows the formula of {kind.__name__}; define lowered(), which returns the score that is left "
            f"once project has changed queries and keys, such as ScaledDot()"
        )


def check_projected(score: Score, q: torch.Tensor, k: torch.Tensor, projected: Projected) -> None:
    """Raise a ShapeError unless `project` returned queries and keys of the head_dim that the score declares, with which
    the call was planned."""
    kind = type(score).__name__
    head_dim = score.projected_dim(q.shape[-1])
    projected_q, projected_k, _ = projected
    for name, before, after in (("queries", q, projected_q), ("keys", k, projected_k)):
        needed = (*before.shape[:-1], head_dim)
        if tuple(after.shape) != needed:
            raise ShapeError(
                f"{kind}.project returned {name} {tuple(after.shape)} and this call needs {needed}; if it changes the "
                f"head_dim, define projected_dim(head_dim), which returns the new one"
            )


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`W x` for every vector x, in float32 at least and then in x's dtype.

    Args:
        x: (batch, heads, length, size).
        weight: (a number that divides heads, to, size); neighbouring heads share one.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if weight.shape[0] == 1:
        return F.linear(x.to(dtype), weight[0].to(dtype)).to(x.dtype)
    weight = weight.repeat_interleave(x.shape[1] // weight.shape[0], dim=0)  # (heads, to, size)
    product = torch.einsum("bhls,hts->bhlt", x.to(dtype), weight.to(dtype))
    return product.to(x.dtype)  # (batch, heads, length, to)


def check_sizes(score: Score, sizes: tuple[int, int], declared: tuple[int, int]) -> None:
    """Raise a ShapeError unless queries and keys have the sizes that were declared."""
    if sizes != declared:
        raise ShapeError(
            f"queries have {count_of(sizes[0], 'numbers')} and keys {sizes[1]}; {score} compares queries of "
            f"{declared[0]} with keys of {declared[1]}: declare it with the sizes of q and k"
        )


def _draw_parameter(shape: tuple[int, ...], generator: torch.Generator | None) -> nn.Parameter:
    between_ends = torch.rand(shape, generator=generator) * 2 - 1  # -1 to 1
    return nn.Parameter(between_ends * shape[-1] ** -0.5)


@dataclass(frozen=True)
class TanhSum(Score, enrol=False):
    """`v · tanh(q + k) * scale`, with v passed as the parameter `energy`, (heads or 1, head_dim)."""


@dataclass(frozen=True)
class AroundCentre(Score, enrol=False):
    """Another formula, `scale` and softcap included, and then `- (j - p)² / (2 σ²)` where `|j - p| <= window`, σ =
    window / 2; other keys are masked.

    p = first + S · centre, where the visible keys of a call are the S from `first` on, and the parameter `centre`,
    (batch, heads, q_len), is the share of them that lies before p, for each query.
    """

    score: Score
    window: int

    @property
    def precision(self) -> float:
        """1 / σ²."""
        return 4 / self.window**2


@dataclass(frozen=True)
class ScaledDot(Score):
    """Scores are scaled dot products: `q · k * scale`, with scale 1 / sqrt(head_dim) by default.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.1.
    """

    is_dot_product: ClassVar[bool] = True

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5


@dataclass(frozen=True)
class Dot(Score):
    """Scores are dot products as they are: `q · k * scale`, with scale 1 by default.

    Luong's local-m, which looks at D keys on either side of the query's own position, is a pattern and no score of
    its own: `pattern=SlidingWindow(2 * D)` with this score and `q_start` as the aligned position of the first query.

    Source: Effective Approaches to Attention-based Neural Machine Translation, Luong et al. 2015, section 3.1, dot;
    section 3.2, local-m.
    """

    def lowered(self) -> Score:
        return ScaledDot()


@dataclass(frozen=True)
class General(Score):
    """Scores are dot products through a matrix: `qᵀ W k * scale`, with scale 1 by default.

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
        check_fields(self, query_dim=at_least_one, key_dim=at_least_one)

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"weight": (sizes.heads, self.query_dim, self.key_dim)}

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        check_sizes(self, (head_dim, key_dim), (self.query_dim, self.key_dim))

    def projected_dim(self, head_dim: int) -> int:
        return self.key_dim

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Projected:
        return multiplied(q, parameters["weight"].mT), k, {}  # qᵀ W k = (Wᵀ q) · k

    def lowered(self) -> Score:
        return ScaledDot()


@dataclass(frozen=True)
class _HiddenLayerScore(Score, enrol=False):
    """What `Additive` and `Concat` share: they become `v · tanh(q' + k')` of projected queries and keys."""

    query_dim: int
    key_dim: int
    hidden: int
    projected_keys: bool = False

    own_key_dim: ClassVar[bool] = True
    projects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            query_dim=at_least_one,
            key_dim=at_least_one,
            hidden=at_least_one,
            projected_keys=yes_or_no,
        )

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        key_size = self.hidden if self.projected_keys else self.key_dim
        check_sizes(self, (head_dim, key_dim), (self.query_dim, key_size))

    def projected_dim(self, head_dim: int) -> int:
        return self.hidden

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Projected:
        queries = self._project_queries(q, parameters)
        keys = k if self.projected_keys else self.project_keys(k, parameters)
        return queries, keys, {"energy": parameters["energy"]}

    def _project_queries(
        self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        raise NotImplementedError

    def with_projected_keys(self) -> Score:
        return replace(self, projected_keys=True)

    def lowered(self) -> Score:
        return TanhSum()


@dataclass(frozen=True)
class Additive(_HiddenLayerScore):
    """Scores are `v · tanh(W q + U k) * scale`, with scale 1 by default.

    The tanh of all pairs is never in memory at once.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden: size of what tanh is taken of.
        projected_keys: keys are passed as U k, of size `hidden` (`project_keys` makes them), so that a cache keeps
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

    def _project_queries(
        self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        return multiplied(q, parameters["query_weight"])


@dataclass(frozen=True)
class Concat(_HiddenLayerScore):
    """Scores are `v · tanh(W [q; k]) * scale`, with scale 1 by default.

    It is `Additive` with W's columns side by side. Query heads that share a key head share W, since its right half
    belongs to the key; each has its own v.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden: size of what tanh is taken of.
        projected_keys: keys are passed as W's right half times k, of size `hidden` (`project_keys` makes them), so
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

    def _project_queries(
        self, q: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        return multiplied(q, parameters["weight"][..., : self.query_dim])


@dataclass(frozen=True)
class LocalPredictive(Score):
    """Local attention with a predicted centre (local-p): each query predicts a position and prefers keys near it.

        p = S · sigmoid(v_p · tanh(W_p q)),   scores = score(q, k) - (j - p)² / (2 σ²) where |j - p| <= D,   σ = D / 2

    The term is added before the softmax, so that the weights w_j of the keys sum to one. The paper takes the softmax
    of the scores alone, over the window, and multiplies its weights a_j by g_j = exp(-(j - p)² / (2 σ²)), which leaves
    their sum below one:

        paper: a_j g_j,   here: w_j = a_j g_j / Σ_i a_i g_i

    Positions j are counted from the first visible key of the call, and S is the number of positions from it to the
    last one: padding changes nothing. A text that grows has another S at each step, so it cannot be
    continued with a cache; a source that stands can. The scale and softcap of a call are those of the inner score.

    Args:
        score: what is scored near the centre: Dot, General, Concat, Additive or ScaledDot.
        window: the paper's D: keys farther than this from the centre are masked.
        query_dim: size of a query; needed where the inner score does not have it.

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
        check_fields(self, window=at_least_one)
        if self.query_dim is not None:
            check_fields(self, query_dim=at_least_one)
        if not isinstance(self.score, Score) or self.score.counts_keys:
            raise ArgumentError(
                f"{shown(self.score)} has no place in LocalPredictive; give Dot, General, Concat or Additive"
            )
        query_dim = getattr(self.score, "query_dim", self.query_dim)
        if query_dim is None or self.query_dim not in (None, query_dim):
            raise ArgumentError(
                f"query_dim is {self.query_dim} beside {self.score}; the centre is predicted from whole queries, so "
                f"give their size"
            )
        object.__setattr__(self, "query_dim", query_dim)

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

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Projected:
        weight = parameters["centre_weight"]
        energy = parameters["centre_energy"]
        hidden = multiplied(q, weight).tanh()  # (batch, heads, q_len, query_dim)
        centre = multiplied(hidden, energy[:, None]).sigmoid()[..., 0]  # (batch, heads, q_len)
        q, k, parameters_left = self.score.project(q, k, parameters)
        return q, k, {**parameters_left, "centre": centre}

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.score.project_keys(k, parameters)

    def with_projected_keys(self) -> Score:
        return replace(self, score=self.score.with_projected_keys())

    def lowered(self) -> Score:
        return AroundCentre(self.score.lowered(), self.window)

    def __str__(self) -> str:
        query_dim = f", query_dim={self.query_dim}"
        if hasattr(self.score, "query_dim"):
            query_dim = ""  # the inner score says it
        return f"{self.text_name}({self.score!s}, {self.window}{query_dim})"
