"""Dropout by a hash: whether a weight is dropped depends only on the seed and the indices of its pair.

Therefore every backend, block size, device and cached continuation drops the same weights. The hash takes in batch row,
head, query position and key position in this order, so that only its last round is computed for every pair. With mix,
the finaliser of SplitMix64, in 64-bit integers with overflow:

    state = seed;  for each (counter, constant):  state = mix(state + (counter + 1) · constant)
    a weight is kept if  (state >> 11) >= dropout · 2**53

mix maps 0 to 0. The counters begin at 1, so that seed 0 and the first pair are not special.
"""

from __future__ import annotations

import torch

from regard.patterns.grid import Grid
from regard.patterns.random_blocks import signed

_BITS = 53
# Odd constants: of the batch row, the head, the query position and the key position.
_STRIDES = (
    -7046029254386353131,
    -4417276706812531889,
    1609587929392839161,
    -8796714831421723037,
)
_CHUNK = 1 << 15  # pairs hashed at once on CPU: two int64 workspaces of 256 KiB


def drop(weights: torch.Tensor, dropout: float, seed: int, grid: Grid) -> torch.Tensor:
    """The weights after dropout: each is zeroed with probability `dropout`, the others are divided by `1 - dropout`."""
    if dropout >= 1:
        return weights * 0
    batch, heads = weights.shape[:2]
    return weights * kept(dropout, seed, batch, heads, grid) / (1 - dropout)


def kept(dropout: float, seed: int, batch: int, heads: int, grid: Grid) -> torch.Tensor:
    """Which weights are kept, (batch, heads, rows, keys): a hash of (seed, batch, head, q position, k position)."""
    out = torch.empty(
        batch, heads, len(grid.rows), len(grid.keys), dtype=torch.bool, device=grid.device
    )
    return write_kept(out, dropout, row_states(seed, batch, heads, grid), grid.k_pos)


def row_states(seed: int, batch: int, heads: int, grid: Grid) -> torch.Tensor:
    """The hash of seed, batch row, head and query position, (batch, heads, rows, 1)."""
    counters = (
        torch.arange(batch, device=grid.device).view(-1, 1, 1, 1),
        torch.arange(heads, device=grid.device).view(1, -1, 1, 1),
        grid.q_pos,
    )
    state = torch.tensor(signed(seed), device=grid.device)
    for counter, stride in zip(counters, _STRIDES[:-1], strict=True):
        state = state + (counter + 1) * stride
        _scramble(state, torch.empty_like(state))
    return state


def write_kept(
    out: torch.Tensor, dropout: float, states: torch.Tensor, k_pos: torch.Tensor
) -> torch.Tensor:
    """Fill `out` (..., rows, keys), of any dtype, with 1 where a weight is kept and 0 where it is dropped.

    Args:
        out: the tensor to fill; contiguous.
        dropout: 0 to 1.
        states: `row_states` of the same leading axes, (..., rows, 1).
        k_pos: positions of the keys (keys,).
    """
    threshold = int(dropout * 2**_BITS)
    if threshold == 2**_BITS or not out.numel():
        return out.zero_()
    # flipping the highest bit makes a signed comparison order numbers as unsigned
    least = (threshold << (64 - _BITS)) - 2**63
    keys = (k_pos + 1) * _STRIDES[-1]
    table = out.view(-1, out.shape[-1])
    states = states.reshape(-1, 1)
    step = len(table) if out.device.type != "cpu" else max(1, _CHUNK // max(1, table.shape[1]))
    state = torch.empty(min(step, len(table)), table.shape[1], dtype=torch.int64, device=out.device)
    spare = torch.empty_like(state)
    for first in range(0, len(table), step):
        rows = states[first : first + step]
        hashed = state[: len(rows)]
        torch.add(rows, keys, out=hashed)
        _scramble(hashed, spare[: len(rows)])
        torch.ge(hashed.bitwise_xor_(-(2**63)), least, out=table[first : first + step])
    return out


def _scramble(state: torch.Tensor, spare: torch.Tensor) -> None:
    """In place: SplitMix64 (Steele et al. 2014, Fast Splittable Pseudorandom Number Generators, fig. 16)."""
    state.bitwise_xor_(_shifted(state, 30, spare)).mul_(-4658895280553007687)
    state.bitwise_xor_(_shifted(state, 27, spare)).mul_(-7723592293110705685)
    state.bitwise_xor_(_shifted(state, 31, spare))


def _shifted(state: torch.Tensor, bits: int, out: torch.Tensor) -> torch.Tensor:
    torch.bitwise_right_shift(state, bits, out=out)
    return out.bitwise_and_((1 << (64 - bits)) - 1)  # a logical shift: zeros enter from the left
