"""The linear transformer and its feature maps, which stand in for the exponential of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.nn import functional

from regard.arguments import check_fields, real, shown
from regard.errors import ArgumentError
from regard.mechanisms.base import STATISTICS
from regard.mechanisms.features import Features, Kernelised
from regard.patterns.arguments import at_least_one
from regard.patterns.registry import Declared, Registry, written


class FeatureMap(Declared, enrol=False):
    """Turns vectors (..., head_dim) into features (..., features) that are not negative; compared by value.

    To write one, derive a frozen dataclass and define `__call__`, and `dim` if the number of features differs from the
    size of a vector. Where all features of a query are 0, its output is 0. Subclasses enrol themselves, so that the
    text of a mechanism may name them: `linear(square)`.

    >>> @dataclass(frozen=True)
    ... class Square(FeatureMap):
    ...     def __call__(self, x: torch.Tensor) -> torch.Tensor:
    ...         return x.square()
    >>> Square()(torch.tensor([-2.0, 1.0])).tolist()
    [4.0, 1.0]
    """

    registry: ClassVar[Registry] = Registry("feature map")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Features of each vector, which look at no other."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def dim(self, head_dim: int) -> int:
        """The number of features of a vector."""
        return head_dim


@dataclass(frozen=True)
class EluPlusOne(FeatureMap):
    """`elu(x) + 1`: x + 1 above 0, exp(x) below.

    Source: Transformers are RNNs, Katharopoulos et al. 2020, equation 7.

    >>> EluPlusOne()(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.3679, 1.0000, 2.0000])
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.elu(x).add_(1)


@dataclass(frozen=True)
class Relu(FeatureMap):
    """`max(x, 0) + epsilon`; with an epsilon above 0, a query without a positive number is no empty row.

    Source: Rethinking Attention with Performers, Choromanski et al. 2021, section 4 (Performer-ReLU).

    >>> Relu(epsilon=0.5)(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    [0.5, 0.5, 1.5]
    """

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check_fields(self, epsilon=partial(real, least=0, most=1e30))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x) + self.epsilon

    def __str__(self) -> str:
        return written(self, "epsilon")


@dataclass(frozen=True)
class SignedSoftmax(FeatureMap):
    """`softmax([x, -x])`: twice as many features, which sum to 1, so that large numbers stand out.

    Source: The Hedgehog and the Porcupine, Zhang et al. 2024, section 4 (without its learned projection).

    >>> SignedSoftmax()(torch.tensor([0.0, 0.0])).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, -x), dim=-1).softmax(-1)

    def dim(self, head_dim: int) -> int:
        return 2 * head_dim


@dataclass(frozen=True)
class Products(FeatureMap):
    """Each number of `relu([x, -x])` times the one `shift` places before it, for shifts 1 .. `shifts`: DPFP.

    Sparse features in 2 · shifts · head_dim dimensions keep more keys apart in one sum. A vector of zeros has none.

    Source: Linear Transformers Are Secretly Fast Weight Programmers, Schlag et al. 2021, section 5 (DPFP).

    >>> Products()(torch.tensor([1.0, 2.0, -3.0])).tolist()
    [3.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    """

    shifts: int = 1

    def __post_init__(self) -> None:
        check_fields(self, shifts=at_least_one)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        signed = functional.relu(torch.cat((x, -x), dim=-1))
        shifts = range(1, self.shifts + 1)
        products = [signed * signed.roll(shift, -1) for shift in shifts]
        return torch.cat(products, dim=-1)

    def dim(self, head_dim: int) -> int:
        return 2 * self.shifts * head_dim

    def __str__(self) -> str:
        return f"{self.text_name}({self.shifts})"


@dataclass(frozen=True)
class LinearTransformer(Kernelised, also=("linear",)):
    """Weights are dot products of features, so that the sum over keys is a matrix of constant size.

        output_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i) Σ_j φ(k_j)

    Time and memory are linear in the length; a text is continued in constant memory (see
    `regard.layers.caches.RecurrentState`).

    Args:
        feature_map: φ, a FeatureMap; EluPlusOne() by default.

    Raises:
        ArgumentError: a feature map that is none.

    Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 4 to 7.

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> attention(q, k, v, pattern="causal", mechanism=LinearTransformer()).shape
    torch.Size([2, 8, 5, 16])
    """

    feature_map: FeatureMap = EluPlusOne()

    statistics: ClassVar[frozenset[str]] = frozenset(STATISTICS) - {"sink"}

    def __post_init__(self) -> None:
        if not isinstance(self.feature_map, FeatureMap):
            raise ArgumentError(
                f"feature_map is {shown(self.feature_map)}; give one of regard.mechanisms, such as EluPlusOne(), or a "
                f"frozen dataclass that derives from FeatureMap"
            )

    def lift(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]
    ) -> Features:
        return Features(self.feature_map(q), self.feature_map(k))

    def feature_dim(self, head_dim: int) -> int:
        return self.feature_map.dim(head_dim)

    def __str__(self) -> str:
        return f"{self.text_name}({self.feature_map!s})"
