"""Linformer: attention over a fixed number of learned mixtures of the keys and values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from regard.arguments import check_fields, count_of, one_of, whole
from regard.mechanisms.base import FormulaInputs, FormulaResult, Mechanism, Sizes
from regard.patterns import KeyMask, KeySpan, Pattern
from regard.patterns.arguments import at_least_one

SHARED = ("none", "heads", "keys_and_values")


@dataclass(frozen=True)
class Linformer(Mechanism):
    """Keys and values are mixed along the length into `rank` of each, which every query attends to.

        softmax(q (E k)ᵀ · scale) (F v)

    E and F are learned, `rank x length`; key j takes their column j, so shorter texts use the first columns. Hidden
    keys and values are zeroed before they are mixed. There is no causal form: each mixture holds every position.

    Args:
        length: the most keys a call may have.
        rank: how many mixtures (the paper's k); cost and memory are linear in the length times it.
        shared: "none": an E and an F for each key/value head; "heads": one E and one F for all heads (the paper's
            headwise sharing); "keys_and_values": one matrix that is both (key-value sharing). Layerwise sharing is
            to pass the parameters of "keys_and_values" to every layer.

    Raises:
        ArgumentError: a length or rank below 1, or another way of sharing.

    Source: Linformer: Self-Attention with Linear Complexity, Wang et al. 2020, equation 7 and section 4.

    >>> from regard import attention
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16)
    >>> mechanism = Linformer(length=9, rank=3)
    >>> attention(q, k, v, mechanism=mechanism, parameters=mechanism.new_parameters(8, 2)).shape
    torch.Size([2, 8, 5, 16])
    """

    length: int
    rank: int
    shared: Literal["none", "heads", "keys_and_values"] = "none"

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = (KeySpan, KeyMask)
    patterns_because: ClassVar[str] = (
        "each of its projected keys mixes all positions, the future too"
    )
    options: ClassVar[frozenset[str]] = frozenset({"scale"})
    statistics: ClassVar[frozenset[str]] = frozenset({"log_sum_exp"})
    by_key: ClassVar[frozenset[str]] = frozenset(
        {"key_projection", "value_projection", "projection"}
    )

    def __post_init__(self) -> None:
        check_fields(
            self, length=at_least_one, rank=at_least_one, shared=partial(one_of, names=SHARED)
        )

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        matrices = sizes.kv_heads if self.shared == "none" else 1
        return dict.fromkeys(self._names, (matrices, self.rank, self.length))

    def new_parameters(
        self, heads: int = 1, kv_heads: int | None = None, generator: torch.Generator | None = None
    ) -> nn.ParameterDict:
        """Numbers of variance 1 / length, so that a mixture of `length` keys is as large as a key.

        (The paper's proof draws them with variance 1 / rank; scores would grow with the square root of length / rank.)
        """
        kv_heads = whole("heads", heads, 1) if kv_heads is None else whole("kv_heads", kv_heads, 1)
        deviation = 1 / math.sqrt(self.length)

        parameters = nn.ParameterDict()
        for name, shape in self.parameter_shapes(Sizes(1, heads, kv_heads, self.length)).items():
            parameters[name] = torch.randn(shape, generator=generator) * deviation
        return parameters

    def formula(self, inputs: FormulaInputs) -> FormulaResult:
        """The equation above; a row without keys gives zeros."""
        dtype = inputs.sum_dtype
        empty_rows = ~inputs.pattern.evaluate(inputs.grid).any(-1, keepdim=True)
        E, F = self.projections(inputs.parameters)

        q = inputs.q.to(dtype).masked_fill(empty_rows, 0)
        # (batch, heads, rank, head_dim) and (..., v_dim)
        k = inputs.for_query_heads(E.to(dtype) @ inputs.k.to(dtype))
        v = inputs.for_query_heads(F.to(dtype) @ inputs.v.to(dtype))
        scores = q @ k.mT * inputs.scale  # (batch, heads, q_len, rank)
        log_sum_exp = scores.logsumexp(-1).masked_fill(empty_rows[..., 0], -math.inf)
        output = (scores.softmax(-1) @ v).masked_fill(empty_rows, 0)
        return FormulaResult(output, log_sum_exp)

    def projections(
        self, parameters: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """E and F, each (kv_heads or 1, rank, keys), from the parameters of a call."""
        key_name = self._names[0]
        value_name = self._names[-1]  # the same where one matrix is both
        return parameters[key_name], parameters[value_name]

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        if sizes.k_len <= self.length:
            return None
        return (
            f"the call has {count_of(sizes.k_len, 'keys')}, and its projections have a column for each of "
            f"{self.length}; shorten the text, or make it with length={sizes.k_len} or more"
        )

    @property
    def _names(self) -> tuple[str, ...]:
        if self.shared == "keys_and_values":
            return ("projection",)
        return ("key_projection", "value_projection")

    def __str__(self) -> str:
        shared = "" if self.shared == "none" else f", shared={self.shared}"
        return f"{self.text_name}(length={self.length}, rank={self.rank}{shared})"
