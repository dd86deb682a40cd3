"""Rows whose scores are all large: their log-sum-exp, once rounded, is too coarse to compute their weights from.

Rounding changes it by up to |log_sum_exp| 2^-24 in float32, and with it every weight exp(score - log_sum_exp) of the
row by the same factor: at 1e30 each of n equal keys would weigh 1 instead of 1/n. Such rows need their highest score
and the sum of exp(score - highest) apart. They are rare, so what has only the log-sum-exp looks for them and computes
them again.

A bias may be as large as a dtype holds, which is too large in units of log 2. `drawn_in` keeps it finite there.
"""

from __future__ import annotations

import math

import torch

NEAR = 1024  # rounding of a log-sum-exp up to it changes weights by no more than rounding of such scores does
WITHIN = 1.48  # a number below the largest one over it is finite in units of log 2, with room for a score
NEARER = 32  # numbers beyond lie so many times as dense
LOG2E = 1 / math.log(2)


def far_rows(log_sum_exp: torch.Tensor) -> torch.Tensor:
    """Which rows are far, booleans of the shape of the log-sum-exp."""
    size = log_sum_exp.abs()
    return (size > NEAR) & (size < math.inf)


def any_far(log_sum_exp: torch.Tensor) -> bool:
    """Whether some row is far; False on other devices than the CPU, which the answer would synchronise."""
    if not log_sum_exp.is_cpu or not log_sum_exp.numel():
        return False
    return bool(far_rows(log_sum_exp).any())


def replace_far(
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    exact_output: torch.Tensor,
    exact_log_sum_exp: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results with those of far rows from an exact computation; a far row changes no bit of the others."""
    far = far_rows(log_sum_exp)
    output = torch.where(far[..., None], exact_output, output)
    return output, torch.where(far, exact_log_sum_exp, log_sum_exp)


def drawn_in(bias: torch.Tensor) -> torch.Tensor:
    """A bias that stays finite and in order when it is multiplied by log2(e); infinities and NaN stay."""
    within = torch.finfo(bias.dtype).max / WITHIN
    near = bias.clamp(-within, within)
    return near.add_(bias - near, alpha=1 / NEARER)


def natural(log2_sums: torch.Tensor) -> torch.Tensor:
    """Log-sum-exps in units of log 2 as natural ones, in place; those of a bias that was drawn in move out again."""
    found = log2_sums.div_(LOG2E)
    if not any_far(found):
        return found
    most = torch.finfo(found.dtype).max
    near = found.clamp(-most / WITHIN, most / WITHIN)
    moved = near.add(found - near, alpha=NEARER).clamp_(-most, most)
    return torch.where(found.isinf(), found, moved)
