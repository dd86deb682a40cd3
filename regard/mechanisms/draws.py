"""Random directions by hashing: a function of a seed and two sizes, which uses no generator of torch."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from regard.patterns.random_blocks import draw

# How many equally likely numbers a draw has.
_STEPS = 2**31
# The step of the first draw; models were trained with the directions that it gives.
_FIRST_STEP = -1


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
    return _cached_directions(seed, count, head_dim, orthogonal, like.dtype, like.device)


@lru_cache(maxsize=256)
def _cached_directions(
    seed: int, count: int, head_dim: int, orthogonal: bool, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    # A tensor that was cached during inference is used in training too.
    with torch.inference_mode(False):
        vectors = _normal(seed, count, head_dim, step=0)
        if orthogonal:
            vectors = _orthogonalised(vectors, seed)
        return vectors.to(dtype).to(device)


def _orthogonalised(vectors: torch.Tensor, seed: int) -> torch.Tensor:
    """Blocks of vectors made orthogonal one after the other, with the lengths of as many other normal vectors.

    Source: Orthogonal Random Features, Yu et al. 2016, section 3.
    """
    count, head_dim = vectors.shape
    chi_lengths = _normal(seed, count, head_dim, step=2).norm(dim=-1, keepdim=True)

    blocks = []
    for block in vectors.split(head_dim):
        unit, triangle = torch.linalg.qr(block.mT)
        # The signs are those of Gram and Schmidt, so that no choice is left to the library.
        blocks.append((unit * triangle.diagonal().sign()).mT)
    return torch.cat(blocks) * chi_lengths


def _normal(seed: int, count: int, head_dim: int, step: int) -> torch.Tensor:
    """Standard normal numbers (count, head_dim) in float64, by the transform of Box and Muller (1958).

    They use the draws of `step` and of the one after it.
    """
    indices = torch.arange(count * head_dim, device="cpu").view(count, head_dim)
    radius_draw = _uniform(seed, indices, _FIRST_STEP + step)
    angle_draw = _uniform(seed, indices, _FIRST_STEP + step + 1)
    return (-2 * radius_draw.log()).sqrt() * (2 * math.pi * angle_draw).cos()


def _uniform(seed: int, indices: torch.Tensor, step: int) -> torch.Tensor:
    """Numbers between 0 and 1, neither of which occurs."""
    numbers = draw(seed, indices, step, torch.full_like(indices, _STEPS))
    return (numbers.double() + 0.5) / _STEPS
