"""Performer: softmax attention estimated by positive random features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from regard.mechanisms.base import STATISTICS, Sizes
from regard.mechanisms.draws import directions
from regard.mechanisms.features import Features, Kernelised
from regard.patterns import Pattern
from regard.patterns.arguments import kept_whole, yes_or_no


@dataclass(frozen=True)
class Performer(Kernelised):
    """Softmax attention estimated in time and memory linear in the length: E[φ(q)·φ(k)] = exp(scale q·k).

        φ(x) = exp(ω x - |x|² / 2) / sqrt(features),  of x = sqrt(scale) q and of x = sqrt(scale) k

    The rows of ω, one for each feature, are random vectors: standard normal, in blocks at right angles. They are a
    function of (seed, features, head_dim), the same for all heads and on every device. Each vector's exponents are
    taken relative to its own largest, so that nothing overflows and no position looks at another; one that is
    smaller by more than half of what the dtype's exponents can tell (e⁻⁴³ in float32) is raised to that, so that no
    denominator vanishes.

    The error of the estimate falls like 1 / sqrt(features) and grows exponentially with scale (|q|² + |k|²): it suits
    short vectors. A model that trains with one ω learns that ω's errors; draw others from time to time, such as
    `mechanism.redrawn(seed=step // 1000)`.

    Args:
        features: how many; cost and memory are linear in the length times this.
        seed: another seed, other ω.
        orthogonal: False draws the rows of ω independently; the error is larger.

    Raises:
        ArgumentError: a number of features below 1, or a seed that is no whole number.

    Source: Rethinking Attention with Performers, Choromanski et al. 2021, lemma 1 and section 2.4 (FAVOR+).

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, pattern="causal", mechanism=Performer(features=64, seed=0)).shape
    torch.Size([2, 8, 5, 16])
    """

    features: int = 256
    seed: int = 0
    orthogonal: bool = True

    takes: ClassVar[frozenset[str]] = frozenset({"scale"})
    tells: ClassVar[frozenset[str]] = frozenset(STATISTICS)

    def __post_init__(self) -> None:
        kept_whole(self, "features", "Performer's features", 1)
        kept_whole(self, "seed", "Performer's seed")
        yes_or_no("Performer's orthogonal", self.orthogonal)

    def redrawn(self, seed: int) -> Performer:
        """The same mechanism with other random features."""
        return Performer(self.features, seed, self.orthogonal)

    def reason_against(self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float) -> str | None:
        if scale > 0:
            return None
        return (
            f"the scale is {scale:g}, and its features are those of sqrt(scale) q and sqrt(scale) k; give one above 0"
        )

    def feature_dim(self, head_dim: int) -> int:
        return self.features

    def lift(self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]) -> Features:
        omega = directions(self.seed, self.features, q.shape[-1], self.orthogonal, like=q)
        (of_q, q_log), (of_k, k_log) = (_positive(x * math.sqrt(scale), omega) for x in (q, k))
        return Features(of_q, of_k, k_log=k_log, q_log=q_log)

    def __str__(self) -> str:
        return f"performer({self.features}, seed={self.seed}{'' if self.orthogonal else ', orthogonal=false'})"


def _positive(x: torch.Tensor, omega: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """φ(x) divided by a number for each vector, (..., features), and that number's logarithm, (...)."""
    exponents = x @ omega.mT  # (..., features)
    largest = exponents.detach().amax(-1, keepdim=True)  # any number will do: the result is the same, and its gradient
    least = math.log(torch.finfo(x.dtype).tiny) / 2
    relative = exponents.sub_(largest).clamp_min_(least).exp_()  # in place: this tensor is what all costs are
    return relative, largest[..., 0] - x.square().sum(-1) / 2 - math.log(len(omega)) / 2
