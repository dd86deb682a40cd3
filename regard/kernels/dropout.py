"""Dropout of weights by counting: what is dropped depends on a seed and the pair's place, on nothing else.

So every backend, block size, device and cached continuation drops the same weights.
"""

from __future__ import annotations

import torch

from regard.patterns import Grid

_BITS = 53
_STRIDES = (-7046029254386353131, -4417276706812531889, 1609587929392839161, -8796714831421723037)  # odd constants


def drop(weights: torch.Tensor, dropout: float, seed: int, grid: Grid) -> torch.Tensor:
    """Weights with each one zeroed with probability `dropout` and the rest divided by `1 - dropout`.

    Args:
        weights: (batch, heads, rows, keys) of the block at `grid`.
        dropout: 0 to 1; 1 drops everything.
        seed: any whole number.
        grid: the positions of the block.
    """
    if dropout >= 1:
        return weights * 0
    return weights * kept(dropout, seed, weights.shape[0], weights.shape[1], grid) / (1 - dropout)


def kept(dropout: float, seed: int, batch: int, heads: int, grid: Grid) -> torch.Tensor:
    """Which weights stay, (batch, heads, rows, keys): a hash of (seed, batch, head, q position, k position)."""
    counters = (
        torch.arange(batch, device=grid.device).view(-1, 1, 1, 1),
        torch.arange(heads, device=grid.device).view(1, -1, 1, 1),
        grid.q_pos,
        grid.k_pos,
    )
    state = torch.tensor(_signed(seed), device=grid.device)
    for counter, stride in zip(counters, _STRIDES, strict=True):
        state = _scramble(state ^ (counter * stride))  # grows to (batch, heads, rows, keys)
    return _shifted(state, 64 - _BITS) >= int(dropout * 2**_BITS)


def _scramble(state: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014, Fast Splittable Pseudorandom Number Generators, figure 16)."""
    state = (state ^ _shifted(state, 30)) * -4658895280553007687
    state = (state ^ _shifted(state, 27)) * -7723592293110705685
    return state ^ _shifted(state, 31)


def _shifted(state: torch.Tensor, bits: int) -> torch.Tensor:
    return (state >> bits) & ((1 << (64 - bits)) - 1)  # zeros come in from the left, as without a sign


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
