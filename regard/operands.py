"""The tensors of one call as every backend receives them: hidden keys are gone or zeroed, once and for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import ArgumentError
from regard.patterns import Grid
from regard.problem import PER_ROW, Problem


@dataclass(frozen=True)
class Operands:
    """Tensors cut to the keys that the pattern can reach, and the grid of positions at which they stand.

    q: (batch, heads, q_len, head_dim), k: (batch, kv_heads, keys, head_dim), v: (batch, kv_heads, keys, v_dim),
    bias: None or (batch or 1, heads or 1, q_len or 1, keys or 1).
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    grid: Grid
    dropout_seed: int


def reachable_keys(problem: Problem) -> range:
    """The run of keys outside which no query of this problem looks; known without any tensor."""
    if problem.q_start is PER_ROW or problem.q_len == 0:
        return range(problem.k_len)
    first = problem.q_start
    return problem.pattern.keys(first, first + problem.q_len - 1, problem.k_len)


def prepare(
    problem: Problem,
    keys: range,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    q_start: torch.Tensor | None,
    dropout_seed: int | None,
) -> Operands:
    """Cut the tensors to `keys` and zero what no query may see.

    A hidden key or value must change no bit of output or gradient, NaN and Inf included, and NaN times a weight
    of zero is NaN: so it is replaced before any backend meets it.
    """
    start = q_start if problem.q_start is PER_ROW else problem.q_start
    assert start is not None
    if isinstance(start, torch.Tensor):
        start = start.clone()  # a backward pass asks again, perhaps after the caller has counted on
    grid = Grid.whole(problem.q_len, problem.k_len, start, q.device).block(range(problem.q_len), keys)
    if len(keys) < problem.k_len:
        k, v = k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop]
    if bias is not None:
        bias = bias[(None,) * (4 - bias.dim())]  # (batch or 1, heads or 1, q_len or 1, k_len or 1)
        bias = bias if bias.shape[-1] == 1 else bias[..., keys.start : keys.stop]
    seen = problem.pattern.visible_keys(grid)
    if seen is not None:
        hidden = ~_for_kv_heads(seen, problem)[..., None]  # (batch or 1, kv_heads or 1, keys, 1)
        k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    return Operands(q, k, v, bias, grid, _seed(problem, dropout_seed))


def _for_kv_heads(seen: torch.Tensor, problem: Problem) -> torch.Tensor:
    """A key/value head is seen where any query head of its group sees it: (batch or 1, kv_heads or 1, keys)."""
    if seen.shape[1] == 1 or problem.group == 1:
        return seen
    return seen.unflatten(1, (problem.kv_heads, problem.group)).any(2)


def _seed(problem: Problem, dropout_seed: int | None) -> int:
    if dropout_seed is None:
        return int(torch.randint(2**62, ()).item()) if problem.dropout > 0 else 0
    if not isinstance(dropout_seed, int) or isinstance(dropout_seed, bool):
        raise ArgumentError(f"dropout_seed is {dropout_seed!r}; it needs a whole number, or None to draw one")
    return dropout_seed
