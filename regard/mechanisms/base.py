"""What every mechanism declares; the planner, layers, tests and docs read the same attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from regard.patterns import Causal, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.grid import Grid
from regard.patterns.registry import Declared, Registry

OPTIONS = ("bias", "softcap", "scale", "dropout", "sink")
STATISTICS = (
    "log_sum_exp",
    "entropy",
    "received",
    "distance",
    "sink",
    "weights",
    "top_keys",
    "weights_of",
)
Projected = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]  # queries, keys, parameters


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer or call, from which the shapes of parameters follow.

    head_dim: only parameters by channel have this size; a layer that makes others leaves it out.
    """

    batch: int
    heads: int
    kv_heads: int
    k_len: int
    head_dim: int = 1


class FormulaInputs(NamedTuple):
    """What a formula is computed of.

    q: (batch, heads, q_len, head_dim). k: (batch, kv_heads, keys, head_dim). v: (batch, kv_heads, keys, v_dim). Keys
    and values that no query may look at are zeros. pattern: what is allowed. grid: where queries and keys stand.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: Pattern
    grid: Grid
    scale: float
    parameters: Mapping[str, torch.Tensor]

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype in which a formula is summed: float32 or wider."""
        return torch.promote_types(self.q.dtype, torch.float32)

    def for_query_heads(self, x: torch.Tensor) -> torch.Tensor:
        """What belongs to key/value heads, (batch, kv_heads, ...), for each query head."""
        return x.repeat_interleave(self.q.shape[1] // self.k.shape[1], dim=1)


class FormulaResult(NamedTuple):
    """What a formula computes: the output, and the weights of pairs with the allowed ones, if the mechanism has any.

    output: (batch, heads, q_len, v_dim). log_sum_exp: (batch, heads, q_len). weights, allowed: (batch or 1, heads or 1,
    q_len, keys).
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor | None
    weights: torch.Tensor | None = None
    allowed: torch.Tensor | None = None


class Comparing:
    """What a mechanism and a score both declare: which queries and keys it compares, and how it projects them first."""

    # May keys have another head_dim than queries?
    own_key_dim: ClassVar[bool] = False
    # Are its scores `q · k * scale`, as fused operations compute them?
    is_dot_product: ClassVar[bool] = False
    # Does `project` change anything?
    projects: ClassVar[bool] = False
    # Does a weight depend on how many keys there are, so that no text is continued?
    counts_keys: ClassVar[bool] = False

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        """Raise a ShapeError if it cannot compare queries of head_dim with keys of key_dim."""

    def projected_dim(self, head_dim: int) -> int:
        """The head_dim of what `project` returns; define it if `project` changes the head_dim."""
        return head_dim

    def project(
        self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]
    ) -> Projected:
        """Queries (batch, heads, q_len, ·), keys (batch, kv_heads, keys, ·) and parameters as backends take them."""
        return q, k, {}

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Keys as `with_projected_keys` takes them, so that a cache need not project them again."""
        return k

    def with_projected_keys(self) -> Any:
        """The same for keys that went through `project_keys`."""
        return self

    def lowered(self) -> Any:
        """What backends compute after `project`."""
        return self

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The tensors that every call needs, by name; the first axis (heads or batch) may also be 1."""
        return {}


class Mechanism(Comparing, Declared, enrol=False):
    """How queries, keys and values become an output; a frozen declaration, compared by value.

    The attributes below declare what it may be combined with; other calls are refused before any backend is asked.
    Learned tensors are passed to each call as `parameters=`; `new_parameters` makes them. Subclasses enrol
    themselves, so that `parse` reads their text.
    """

    registry: ClassVar[Registry] = Registry("mechanism")

    # The classes of patterns that it takes, joined by &; None for every pattern.
    patterns: ClassVar[tuple[type[Pattern], ...] | None] = None
    # Why not others, where a refusal needs a reason.
    patterns_because: ClassVar[str] = ""
    # Names of OPTIONS and of STATISTICS.
    options: ClassVar[frozenset[str]] = frozenset()
    statistics: ClassVar[frozenset[str]] = frozenset()
    # Are the queries the keys?
    shares_keys: ClassVar[bool] = False
    # Parameters of one call, which `new_parameters` does not make.
    computed: ClassVar[frozenset[str]] = frozenset()
    # Parameters whose third axis is the position of a key.
    by_key: ClassVar[frozenset[str]] = frozenset()
    # Parameters that may be left out.
    optional: ClassVar[frozenset[str]] = frozenset()
    # May v have more heads than q and k?
    groups_values: ClassVar[bool] = False
    # Can it be continued in constant memory?
    has_state: ClassVar[bool] = False
    # Are its weights a softmax of scores over the allowed keys?
    is_softmax: ClassVar[bool] = False

    def default_scale(self, head_dim: int) -> float:
        """The scale of a call that gives none."""
        return head_dim**-0.5

    def key_dim(self, head_dim: int) -> int:
        """The size of a key for queries of head_dim."""
        return head_dim

    def state_shape(self, head_dim: int, v_dim: int) -> tuple[int, int]:
        """The shape of what a state holds for each key/value head."""
        raise NotImplementedError(f"{type(self).__name__} has no state")

    def formula(self, inputs: FormulaInputs) -> FormulaResult:
        """The paper's formula, pair by pair, which the reference backend computes in float32 at least."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def new_parameters(
        self, heads: int = 1, kv_heads: int | None = None, generator: torch.Generator | None = None
    ) -> nn.ParameterDict:
        """Initial parameters for a number of heads; empty for a mechanism that learns nothing."""
        return nn.ParameterDict()

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        """Why such a call is refused, as the end of a sentence; None if it is not."""
        return None


def looks_back_alone(pattern: Pattern) -> bool:
    """Whether a pattern masks all keys after a query's own position."""
    return pattern == NOTHING or Causal() in pattern.factors


def takes(mechanism: Mechanism, kind: type[Pattern]) -> bool:
    """May the mechanism be combined with this kind of pattern?"""
    return mechanism.patterns is None or kind in mechanism.patterns
