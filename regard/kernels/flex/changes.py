"""What happens to a score before the softmax: the cap, then the bias."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from regard.core.backend import Operands, Relative
from regard.core.problem import Problem
from regard.kernels.flex.tables import lookup

Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def change_of(problem: Problem, operands: Operands) -> Change | None:
    """softcap · tanh(score / softcap) + bias as a function of (score, batch, head, query, key); None for neither."""
    softcap = problem.softcap
    bias = None if operands.bias is None else _bias_at(operands.bias, operands)
    if softcap is None and bias is None:
        return None

    def change(
        score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is None:
            return score
        added = bias(batch, head, query, key).to(score.dtype)
        return torch.where(added == -math.inf, -math.inf, score + added)  # hidden, whatever the score is

    return change


def _bias_at(bias: torch.Tensor | Relative, operands: Operands) -> Callable[..., torch.Tensor]:
    """The bias at (batch, head, query, key)."""
    if isinstance(bias, torch.Tensor):
        return lookup(_narrow(bias))
    by_distance = lookup(_narrow(bias.table))
    grid = operands.grid
    assert isinstance(grid.q_start, int)
    shift = torch.tensor(grid.keys.start - grid.q_start - bias.lowest, device=grid.device)  # kernels know no numbers
    return lambda batch, head, query, key: by_distance(head, key - query + shift)


def _narrow(bias: torch.Tensor) -> torch.Tensor:
    """Kernels compute in float32 and give a bias no gradient."""
    bias = bias.detach()
    return bias.float() if bias.dtype == torch.float64 else bias
