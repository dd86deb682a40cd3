"""Softmax weights estimated by random features: Performer and random feature attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from regard.arguments import check_fields, real, whole, yes_or_no
from regard.mechanisms.base import STATISTICS, Sizes, looks_back_alone
from regard.mechanisms.draws import directions
from regard.mechanisms.features import Features, Kernelised
from regard.patterns import Pattern
from regard.patterns.arguments import at_least_one
from regard.patterns.registry import word


@dataclass(frozen=True)
class Performer(Kernelised):
    """Softmax attention estimated in time and memory linear in the length: E[φ(q)·φ(k)] = exp(scale q·k).

        φ(x) = exp(ω x - |x|² / 2) / sqrt(features),  of x = sqrt(scale) q and of x = sqrt(scale) k

    The rows of ω, one for each feature, are random vectors: standard normal, in blocks at right angles. They are a
    function of (seed, features, head_dim), the same for all heads and on every device. Each vector's exponents are
    taken relative to its own largest, so that nothing overflows and no position looks at another; one that is
    smaller by more than half of what the dtype's exponents can express (e⁻⁴³ in float32) is raised to that, so that no
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

    options: ClassVar[frozenset[str]] = frozenset({"scale"})
    statistics: ClassVar[frozenset[str]] = frozenset(STATISTICS) - {"sink"}

    def __post_init__(self) -> None:
        check_fields(self, features=at_least_one, seed=whole, orthogonal=yes_or_no)

    def redrawn(self, seed: int) -> Performer:
        """The same mechanism with other random features."""
        return Performer(self.features, seed, self.orthogonal)

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        if scale > 0:
            return None
        return (
            f"the scale is {scale:g}, and its features are those of sqrt(scale) q and sqrt(scale) k; "
            f"give one above 0"
        )

    def feature_dim(self, head_dim: int) -> int:
        return self.features

    def lift(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]
    ) -> Features:
        omega = directions(self.seed, self.features, q.shape[-1], self.orthogonal, like=q)
        q_features, q_log = _positive_features(q * math.sqrt(scale), omega)
        k_features, k_log = _positive_features(k * math.sqrt(scale), omega)
        return Features(q_features, k_features, k_log=k_log, q_log=q_log)

    def __str__(self) -> str:
        independent = "" if self.orthogonal else ", orthogonal=false"
        return f"{self.text_name}({self.features}, seed={self.seed}{independent})"


def _positive_features(x: torch.Tensor, omega: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """φ(x) divided by a number for each vector, (..., features), and that number's logarithm, (...)."""
    exponents = x @ omega.mT  # (..., features)
    # Any number will do: the result is the same, and so is its gradient.
    largest = exponents.detach().amax(-1, keepdim=True)
    # Half of the dtype's exponents, so that the product of two features of this size is still above 0.
    least = math.log(torch.finfo(x.dtype).tiny) / 2
    # In place, since this tensor causes nearly all of the cost.
    relative = exponents.sub_(largest).clamp_min_(least).exp_()
    return relative, largest[..., 0] - x.square().sum(-1) / 2 - math.log(len(omega)) / 2


LEAST_SIGMA = 0.2  # below it the smallest possible weight, exp(-2 / sigma²), is lost in float32
# Written once: inside of a compiled graph a float of a module may be unknown, and then no text can name it.
_NEEDS_SIGMA = f"a finite number from {LEAST_SIGMA} on: exp(-2 / sigma²) is the least weight"


@dataclass(frozen=True)
class RandomFeature(Kernelised, also=("rfa",)):
    """Attention by exp(q·k / sigma²) of q and k of length 1, estimated in time and memory linear in the length.

        φ(x) = [sin(w_1·x), ..., sin(w_D·x), cos(w_1·x), ..., cos(w_D·x)] / sqrt(D),  w_i ~ N(0, 1 / sigma²)

    E[φ(q)·φ(k)] = exp(-|q - k|² / (2 sigma²)), which is exp(q·k / sigma²) times a number that is the same for all q
    and k of length 1. q and k are brought to that length; a vector of length 0 has no direction and stays 0. The w_i
    are a function of (seed, features, head_dim), the same for all heads and on every device.

    The gated form forgets. Each key j comes with a number g_j in (0, 1), so that older keys weigh less:

        S_t = g_t S_{t-1} + (1 - g_t) φ(k_t) v_tᵀ,  z_t = g_t z_{t-1} + (1 - g_t) φ(k_t)
        output_t = φ(q_t) S_t / φ(q_t) z_t

    The g_j are passed to each call, `parameters={"gate": ...}`, float (batch or 1, kv_heads, k_len); the paper has
    sigmoid(w·x_j + b) of each token. Keys that are masked for a query forget nothing. Where a gate of 0 or 1 would
    leave exactly nothing, the smallest positive number of the dtype is left.

    An estimate may be negative, and so may a sum of them, by which the output is divided. The true sum is at
    least exp(-2 / sigma²) for each key (gates counted), because |q - k| <= 2: a smaller estimate is raised to that. So
    no number of an output is larger than exp(2 / sigma²) times the largest value. Weights may be negative, and where
    the sum was raised they do not add up to 1: that is why there is no entropy, log-sum-exp or mean distance.

    Args:
        features: the paper's D, how many w_i; cost and memory are linear in the length times twice this.
        gated: whether keys come with gates; causal only.
        seed: another seed, other w_i.
        sigma: the width of the kernel, 0.2 or more; larger ones make flatter weights and smaller errors.

    Raises:
        ArgumentError: a number of features below 1, a seed that is no whole number, a sigma below 0.2 or not finite.

    Source: Random Feature Attention, Peng et al. 2021, theorem 1, sections 3.1 and 3.2 (gates).

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, mechanism=RandomFeature(features=64)).shape
    torch.Size([2, 8, 5, 16])
    >>> gate = torch.sigmoid(torch.randn(2, 2, 7))
    >>> gated = RandomFeature(features=64, gated=True)
    >>> attention(q, k, v, pattern="causal", mechanism=gated, parameters={"gate": gate}).shape
    torch.Size([2, 8, 5, 16])
    """

    features: int = 128
    gated: bool = False
    seed: int = 0
    sigma: float = 1.0

    statistics: ClassVar[frozenset[str]] = frozenset(
        {"received", "weights", "top_keys", "weights_of"}
    )
    by_key: ClassVar[frozenset[str]] = frozenset({"gate"})
    computed: ClassVar[frozenset[str]] = frozenset({"gate"})

    def __post_init__(self) -> None:
        sigma = partial(real, least=LEAST_SIGMA, needs=_NEEDS_SIGMA)
        check_fields(self, features=at_least_one, gated=yes_or_no, seed=whole, sigma=sigma)

    def redrawn(self, seed: int) -> RandomFeature:
        """The same mechanism with other random features."""
        return RandomFeature(self.features, self.gated, seed, self.sigma)

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"gate": (sizes.batch, sizes.kv_heads, sizes.k_len)} if self.gated else {}

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        if not self.gated or looks_back_alone(pattern):
            return None
        return f"its gates forget what came before a query, and {pattern} is not causal; add & causal, or gated=False"

    def feature_dim(self, head_dim: int) -> int:
        return 2 * self.features  # a sine and a cosine each

    def lift(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]
    ) -> Features:
        w = directions(self.seed, self.features, q.shape[-1], orthogonal=False, like=q) / self.sigma
        q_features = _sines_and_cosines(_at_unit_length(q), w)
        k_features = _sines_and_cosines(_at_unit_length(k), w)
        least_weight = math.exp(-2 / self.sigma**2)
        if not self.gated:
            return Features(q_features, k_features, floor=least_weight)

        gate = parameters["gate"].to(k.dtype).expand(k.shape[:3])  # (batch, kv_heads, keys)
        tiny = torch.finfo(k.dtype).tiny
        decay_log = gate.clamp_min(tiny).log()
        k_log = (1 - gate).clamp_min(tiny).log()
        return Features(q_features, k_features, k_log, decay_log, least_weight)

    def __str__(self) -> str:
        gated = ", gated" if self.gated else ""
        sigma = word(self.sigma)
        return f"{self.text_name}({self.features}{gated}, seed={self.seed}, sigma={sigma})"


def _sines_and_cosines(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    angles = x @ w.mT  # (..., D)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).div_(math.sqrt(len(w)))


def _at_unit_length(x: torch.Tensor) -> torch.Tensor:
    """Vectors brought to length 1; those of length 0 stay 0, with gradient 0."""
    # First by the largest number, so that no square overflows or vanishes.
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / largest.masked_fill(largest == 0, math.inf)
    length = x.norm(dim=-1, keepdim=True)
    return x / length.masked_fill(length == 0, math.inf)
