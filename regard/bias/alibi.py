"""Attention with linear biases: the farther a key, the less it counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from regard.arguments import real
from regard.bias.base import Bias
from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown


@dataclass(frozen=True, init=False)
class ALiBi(Bias):
    """Each head lowers a score in proportion to the distance, at a rate of its own.

        bias = -slope[head] · |k_pos - q_pos|

    Causal attention looks back alone, where this is the paper's; ahead, it falls likewise.

    Args:
        slopes: one for each query head; by default the paper's series for however many heads a call has.

    Raises:
        ArgumentError: slopes that are no finite numbers.

    Source: Train Short, Test Long, Press et al. 2022, section 3.

    >>> ALiBi().by_distance(torch.tensor([-2, -1, 0]), heads=2).tolist()
    [[-0.125, -0.0625, -0.0], [-0.0078125, -0.00390625, -0.0]]
    """

    slopes: tuple[float, ...] | None

    def __init__(self, slopes: Iterable[float] | None = None) -> None:
        if slopes is not None and (not isinstance(slopes, Iterable) or isinstance(slopes, str | bytes)):
            raise ArgumentError(f"ALiBi's slopes are {shown(slopes)}; they are numbers, one for each query head")
        object.__setattr__(self, "slopes", None if slopes is None else tuple(_slope(one) for one in slopes))

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        slopes = series(heads) if self.slopes is None else self.slopes
        by_head = torch.tensor(slopes, dtype=torch.float64, device=distances.device)
        return -by_head[:, None] * distances.abs()

    def check(self, heads: int) -> None:
        if self.slopes is not None and len(self.slopes) != heads:
            raise ShapeError(f"ALiBi has {len(self.slopes)} slopes and the call {heads} query heads; give one for each")

    def __str__(self) -> str:
        return "ALiBi()" if self.slopes is None else f"ALiBi({list(self.slopes)})"


def _slope(one: object) -> float:
    try:
        return real("slope", one)
    except ArgumentError:
        raise ArgumentError(
            f"ALiBi was given slope {shown(one)}; each is a finite number, one for each query head"
        ) from None


def series(heads: int) -> tuple[float, ...]:
    """The paper's slopes: 2^(-8/heads) and its powers for a power of two.

    For another number of heads, those of the power of two below it come first, and between them are put those with
    odd numbers of the power of two above.

    >>> series(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    >>> len(series(12)), series(12)[8] == 2**-0.5
    (12, True)
    """
    below = 1 << (heads.bit_length() - 1) if heads else 0
    slopes = [2 ** (-8 * (head + 1) / below) for head in range(below)]
    between = [2 ** (-4 * (head + 1) / below) for head in range(0, 2 * below, 2)]
    return tuple(slopes + between[: heads - below])
