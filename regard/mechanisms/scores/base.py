"""What every score declares, and the formulas of pairs that backends compute once queries and keys are projected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import count_of, whole
from regard.errors import ArgumentError, ShapeError
from regard.mechanisms.base import Projected, Sizes
from regard.patterns.registry import Declared, Registry


class Score(Declared, enrol=False):
    """A score of queries and keys; a frozen declaration, compared by value.

    Factors of queries alone or keys alone are applied before a backend gets them (`project`); a formula of pairs is
    left, which `lowered` names. Subclasses enrol themselves, so that the text of a mechanism may name them.
    """

    registry: ClassVar[Registry] = Registry("score")

    own_key_dim: ClassVar[bool] = False  # may keys have another size than queries?
    is_dot_product: ClassVar[bool] = False  # is it `q · k * scale` and nothing else?
    projects: ClassVar[bool] = False  # does `project` change anything?
    counts_keys: ClassVar[bool] = False  # does a score depend on how many keys there are, so that no text is continued?

    def default_scale(self, head_dim: int) -> float:
        """The scale of a call that gives none: 1, except for scaled dot products."""
        return 1.0

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The tensors that every call needs, by name; the first axis (heads) may also be 1."""
        return {}

    def new_parameters(self, heads: int, kv_heads: int, generator: torch.Generator | None = None) -> nn.ParameterDict:
        """Initial parameters: each number uniform within ±1 / sqrt(the numbers that are summed with it)."""
        heads, kv_heads = whole("heads", heads, 1), whole("kv_heads", kv_heads, 1)
        shapes = self.parameter_shapes(Sizes(1, heads, kv_heads, 1))
        return nn.ParameterDict({name: _drawn(shape, generator) for name, shape in shapes.items()})

    def check_dims(self, head_dim: int, key_dim: int) -> None:
        """Raise a ShapeError if it cannot compare queries of head_dim with keys of key_dim."""

    def projected_dim(self, head_dim: int) -> int:
        """The head_dim of what `project` returns; define it if `project` changes the head_dim."""
        return head_dim

    def project(self, q: torch.Tensor, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> Projected:
        """Queries (batch, heads, q_len, ·), keys (batch, kv_heads, keys, ·) and parameters as the formula of pairs
        takes them."""
        return q, k, {}

    def project_keys(self, k: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Keys as `with_projected_keys` takes them, so that a cache need not project them again."""
        return k

    def with_projected_keys(self) -> Score:
        """The same score of keys that went through `project_keys`."""
        return self

    def lowered(self) -> Score:
        """The formula of pairs that is left after `project`."""
        return self


def check_computable(score: Score) -> None:
    """Raise an ArgumentError unless backends know the formula of pairs that a score leaves, and call its `project`."""
    kind = type(score)
    if kind.project is not Score.project and not score.projects:
        raise ArgumentError(
            f"{kind.__name__} defines project, which is called only where the class says `projects = True`; add that"
        )
    left = score.lowered()
    if not (left.is_dot_product or left.lowered().is_dot_product or isinstance(left, TanhSum | AroundCentre)):
        raise ArgumentError(
            f"no backend knows the formula of {kind.__name__}; define lowered(), which returns the score that is left "
            f"once project has changed queries and keys, such as ScaledDot()"
        )


def check_projected(score: Score, q: torch.Tensor, k: torch.Tensor, projected: Projected) -> None:
    """Raise a ShapeError unless `project` returned queries and keys of the head_dim that the score declares, with which
    the call was planned."""
    kind, head_dim = type(score).__name__, score.projected_dim(q.shape[-1])
    for name, given, found in (("queries", q, projected[0]), ("keys", k, projected[1])):
        wanted = (*given.shape[:-1], head_dim)
        if tuple(found.shape) != wanted:
            raise ShapeError(
                f"{kind}.project returned {name} {tuple(found.shape)} and this call needs {wanted}; if it changes the "
                f"head_dim, define projected_dim(head_dim), which returns the new one"
            )


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`W x` for every vector x, in float32 at least and then in x's dtype.

    Args:
        x: (batch, heads, length, size).
        weight: (a number that divides heads, to, size); neighbouring heads share one.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if weight.shape[0] == 1:
        return F.linear(x.to(wide), weight[0].to(wide)).to(x.dtype)
    weight = weight.repeat_interleave(x.shape[1] // weight.shape[0], dim=0)  # (heads, to, size)
    return torch.einsum("bhls,hts->bhlt", x.to(wide), weight.to(wide)).to(x.dtype)  # (batch, heads, length, to)


def kept_dims(score: Score, *fields: str) -> None:
    """Checks sizes that a score declares, and keeps them as Python ints."""
    for field in fields:
        number = whole(f"{type(score).__name__}'s {field}", getattr(score, field), 1)
        object.__setattr__(score, field, number)


def check_sizes(score: Score, sizes: tuple[int, int], declared: tuple[int, int]) -> None:
    """Raise a ShapeError unless queries and keys have the sizes that were declared."""
    if sizes != declared:
        raise ShapeError(
            f"queries have {count_of(sizes[0], 'numbers')} and keys {sizes[1]}; {score} compares "
            f"queries of {declared[0]} with keys "
            f"of {declared[1]}: declare it with the sizes of q and k"
        )


def _drawn(shape: tuple[int, ...], generator: torch.Generator | None) -> nn.Parameter:
    return nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) * shape[-1] ** -0.5)


@dataclass(frozen=True)
class TanhSum(Score, enrol=False):
    """`v · tanh(q + k) * scale`, with v handed over as the parameter `energy`, (heads or 1, head_dim)."""


@dataclass(frozen=True)
class AroundCentre(Score, enrol=False):
    """Another formula, `scale` and softcap included, and then `- (j - p)² / (2 σ²)` where `|j - p| <= window`, σ =
    window / 2; other keys are masked.

    p = first + S · centre, where a call's live keys are the S from `first` on, and the parameter `centre`, (batch,
    heads, q_len), says for each query which share of them lies before p.
    """

    score: Score
    window: int

    @property
    def precision(self) -> float:
        """1 / σ²."""
        return 4 / self.window**2
