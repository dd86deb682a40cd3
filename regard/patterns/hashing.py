"""Random numbers by hashing: each is a function of a seed, a place and a step, the same on every device.

With mix, the finaliser of SplitMix64, in 64 bits that wrap around:

    state = mix(mix(seed + (place + 1) · 0x9E3779B97F4A7C15) + (step + 1) · 0xC2B2AE3D27D4EB4F)
    number = (state >> 32) · choices >> 32

mix maps 0 to 0, so place and step are counted from 1: zeros are then as good as other numbers.
"""

from __future__ import annotations

import torch


def draw(seed: int, place: torch.Tensor, step: int, choices: torch.Tensor) -> torch.Tensor:
    """A random number 0 .. choices - 1 for each place, all equally likely.

    Args:
        seed: 64 bits, with or without a sign.
        place: int64 of any shape.
        step: which draw at that place.
        choices: int64 that broadcasts with `place`, 1 to 2**31.
    """
    state = _scramble((place + 1) * -7046029254386353131 + _signed(seed))
    state = _scramble(state + _signed((step + 1) * -4417276706812531889))
    return (_shifted(state, 32) * choices) >> 32


def _scramble(state: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014, Fast Splittable Pseudorandom Number Generators, figure 16)."""
    state = (state ^ _shifted(state, 30)) * -4658895280553007687
    state = (state ^ _shifted(state, 27)) * -7723592293110705685
    return state ^ _shifted(state, 31)


def _shifted(state: torch.Tensor, bits: int) -> torch.Tensor:
    return (state >> bits) & ((1 << (64 - bits)) - 1)  # zeros come in from the left, as without a sign


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
