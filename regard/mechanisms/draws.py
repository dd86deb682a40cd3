"""Random directions by hashing: a function of a seed and two sizes, which uses no generator of torch."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from regard.patterns.random_blocks import draw

_STEPS = 2**31  # equally likely numbers
_FIRST = -1  # the first step: models were trained with the directions that this gives


def directions(
    seed: int, count: int, head_dim: int, orthogonal: bool, like: torch.Tensor
) -> torch.Tensor:
    """`count` random vectors of `head_dim` numbers, each vector by itself standard normal.

    Args:
        seed: another seed, other vectors.
        count: how many; the first ones are the same however many there are.
        head_dim: their size.
        orthogonal: every `head_dim` of them in a row are at right angles; independent otherwise.
        like: a tensor of the dtype and on the device wanted.

    Returns:
        (count, head_dim), shared by all who ask: not to be written to.

    >>> directions(0, 3, 2, True, torch.empty(0)).shape
    torch.Size([3, 2])
    """
    return _kept(seed, count, head_dim, orthogonal, like.dtype, like.device)


@lru_cache(maxsize=256)
def _kept(
    seed: int, count: int, head_dim: int, orthogonal: bool, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    with torch.inference_mode(False):  # what is kept from inference must serve training too
        vectors = _normal(seed, count, head_dim, first_step=0)
        return (_turned(vectors, seed) if orthogonal else vectors).to(device, dtype)


def _turned(vectors: torch.Tensor, seed: int) -> torch.Tensor:
    """Blocks of vectors made orthogonal one after the other, with the lengths of as many other normal vectors.

    Source: Orthogonal Random Features, Yu et al. 2016, section 3.
    """
    count, head_dim = vectors.shape
    lengths = _normal(seed, count, head_dim, first_step=2).norm(
        dim=-1, keepdim=True
    )  # chi-distributed
    blocks = []
    for block in vectors.split(head_dim):
        unit, triangle = torch.linalg.qr(block.mT)
        blocks.append(
            (unit * triangle.diagonal().sign()).mT
        )  # as Gram and Schmidt: no choice is left to the library
    return torch.cat(blocks) * lengths


def _normal(seed: int, count: int, head_dim: int, first_step: int) -> torch.Tensor:
    """Standard normal numbers (count, head_dim) in float64, by the transform of Box and Muller (1958)."""
    place = torch.arange(count * head_dim, device="cpu").view(count, head_dim)
    first, second = (_uniform(seed, place, _FIRST + first_step + step) for step in range(2))
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def _uniform(seed: int, place: torch.Tensor, step: int) -> torch.Tensor:
    """Numbers between 0 and 1, neither of which occurs."""
    return (draw(seed, place, step, torch.full_like(place, _STEPS)).double() + 0.5) / _STEPS
