"""The tensors of one call as every backend receives them: hidden keys are gone or zeroed, once and for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from regard.arguments import is_whole, plain
from regard.bias import Bias
from regard.errors import ArgumentError
from regard.kinds import shown
from regard.patterns import Grid
from regard.problem import PER_ROW, Problem
from regard.stored import Stored


@dataclass(frozen=True)
class Relative:
    """A bias by distance: table[h or 0, t] is added to head h's score of the pair with k_pos - q_pos = lowest + t."""

    table: torch.Tensor
    lowest: int

    def block(self, grid: Grid) -> torch.Tensor:
        """The bias of a block of pairs, (batch or 1, heads or 1, rows, keys)."""
        distances = grid.k_pos - grid.q_pos - self.lowest  # (rows, keys) or (batch, 1, rows, keys)
        found = self.table[:, distances]  # (heads or 1, rows, keys) or (heads or 1, batch, 1, rows, keys)
        return found[None] if found.dim() == 3 else found[:, :, 0].transpose(0, 1)


@dataclass(frozen=True)
class Operands:
    """Tensors cut to the keys that the pattern can reach, and the grid of positions at which they stand.

    q: (batch, heads, q_len, head_dim), k: (batch, kv_heads, keys, head_dim), v: (batch, kv_heads, keys, v_dim),
    bias: None, or (batch or 1, heads or 1, q_len or 1, keys or 1), or Relative. k and v are Stored only for
    backends that say they take them so. parameters: what the mechanism was handed, by name.
    """

    q: torch.Tensor
    k: Any
    v: Any
    bias: torch.Tensor | Relative | None
    grid: Grid
    dropout_seed: int
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def bias_block(self, grid: Grid) -> torch.Tensor | None:
        """The bias of a block of pairs, (batch or 1, heads or 1, rows or 1, keys or 1), if there is one."""
        if self.bias is None or isinstance(self.bias, Relative):
            return None if self.bias is None else self.bias.block(grid)
        here = self.grid.keys.start
        bias = self.bias if self.bias.shape[2] == 1 else self.bias[:, :, grid.rows.start : grid.rows.stop]
        return bias if bias.shape[3] == 1 else bias[..., grid.keys.start - here : grid.keys.stop - here]

    def in_float32(self) -> Operands:
        """The same with plain tensors of half types in float32, where gradients that come in parts are added."""
        wide = lambda x: x.float() if isinstance(x, torch.Tensor) and x.dtype.itemsize == 2 else x  # noqa: E731
        bias = self.bias
        bias = replace(bias, table=wide(bias.table)) if isinstance(bias, Relative) else wide(bias)
        return replace(self, q=wide(self.q), k=wide(self.k), v=wide(self.v), bias=bias)

    def widened(self) -> Operands:
        """The same with keys and values as plain tensors in q's dtype."""
        if not isinstance(self.k, Stored) and not isinstance(self.v, Stored):
            return self
        k, v = (x.widened(self.q.dtype) if isinstance(x, Stored) else x for x in (self.k, self.v))
        return replace(self, k=k, v=v)


def reachable_keys(problem: Problem) -> range:
    """The run of keys outside which no query of this problem looks; known without any tensor."""
    if problem.q_start is PER_ROW or problem.q_len == 0:
        return range(problem.k_len)
    first = problem.q_start
    return problem.pattern.keys(first, first + problem.q_len - 1, problem.k_len)


@dataclass(frozen=True)
class Place:
    """Where the tensors of a call stand: the grid of the keys that it can reach, and those of them no query may see.

    hidden: (batch or 1, kv_heads or 1, keys, 1), True = no query may see it; None where every key is seen.
    """

    grid: Grid
    hidden: torch.Tensor | None

    @property
    def lasting(self) -> bool:
        """Is it light to keep, and the same for every call of its problem?"""
        return self.hidden is None and not self.grid.per_batch


def place_of(problem: Problem, keys: range, q_start: torch.Tensor | None, device: torch.device) -> Place:
    """Where the tensors of a call stand."""
    start: int | torch.Tensor | None = problem.q_start
    if problem.q_start is PER_ROW and q_start is not None:
        start = q_start.clone()  # a backward pass asks again, perhaps after the caller has counted on
    grid = Grid.whole(problem.q_len, problem.k_len, start, device).block(range(problem.q_len), keys)
    seen = problem.pattern.visible_keys(grid)
    return Place(grid, None if seen is None else ~_for_kv_heads(seen, problem)[..., None])


def prepare(
    problem: Problem,
    place: Place,
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    bias: torch.Tensor | Bias | None,
    dropout_seed: int | None,
) -> Operands:
    """Cut the tensors to the keys of their place and zero what no query may see.

    A hidden key or value must change no bit of output or gradient, NaN and Inf included, and NaN times a weight
    of zero is NaN: so it is replaced before any backend meets it.
    """
    grid = place.grid
    if len(grid.keys) < problem.k_len or isinstance(k, Stored):
        k, v = _cut(k, grid.keys), _cut(v, grid.keys)
    if place.hidden is not None:
        k, v = (x.hidden(place.hidden) if isinstance(x, Stored) else x.masked_fill(place.hidden, 0) for x in (k, v))
    return Operands(q, k, v, _prepared_bias(bias, problem, grid), grid, _seed(problem, dropout_seed))


def _cut(x: torch.Tensor | Stored, keys: range) -> torch.Tensor | Stored:
    return x.cut(keys) if isinstance(x, Stored) else x[:, :, keys.start : keys.stop]


def _prepared_bias(bias: torch.Tensor | Bias | None, problem: Problem, grid: Grid) -> torch.Tensor | Relative | None:
    """A tensor with four axes, cut to the reachable keys, or a bias by distance at every distance that occurs."""
    if bias is None:
        return None
    if isinstance(bias, torch.Tensor):
        bias = bias[(None,) * (4 - bias.dim())]  # (batch or 1, heads or 1, q_len or 1, k_len or 1)
        return bias if bias.shape[-1] == 1 else bias[..., grid.keys.start : grid.keys.stop]
    starts = grid.q_start.tolist() if isinstance(grid.q_start, torch.Tensor) else [grid.q_start]
    lowest = grid.keys.start - (max(starts, default=0) + max(0, problem.q_len - 1))
    highest = max(lowest, grid.keys.stop - 1 - min(starts, default=0))
    return Relative(bias.by_distance(torch.arange(lowest, highest + 1, device=grid.device), problem.heads), lowest)


def _for_kv_heads(seen: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A key/value head is seen where any query head of its group sees it: (batch or 1, kv_heads or 1, keys)."""
    if seen.shape[1] == 1 or problem.group == 1:
        return seen
    return seen.unflatten(1, (problem.kv_heads, problem.group)).any(2)


def _seed(problem: Problem, dropout_seed: int | None) -> int:
    if dropout_seed is None:
        return int(torch.randint(2**62, (), device="cpu").item()) if problem.dropout > 0 else 0
    return checked_seed(dropout_seed)


def checked_seed(dropout_seed: int) -> int:
    """A whole number, or a refusal.

    Raises:
        ArgumentError: anything else.
    """
    found = plain("dropout_seed", dropout_seed)
    if not is_whole(found):
        raise ArgumentError(f"dropout_seed is {shown(found)}; it needs a whole number, or None to draw one")
    return found
