"""Softmax attention, the mechanism of the Transformer."""

from __future__ import annotations

from dataclasses import dataclass, field


class Mechanism:
    """What turns queries, keys and values into an output; compared by value."""


@dataclass(frozen=True)
class ScaledDot:
    """Scores are scaled dot products: `q · k * scale`.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.1.
    """

    def __str__(self) -> str:
        return "scaled_dot"


@dataclass(frozen=True)
class Softmax(Mechanism):
    """Weights are the softmax of the scores over the allowed keys, the output their weighted mean of the values.

    Source: Attention Is All You Need, Vaswani et al. 2017, equation 1.

    >>> print(Softmax())
    softmax(scaled_dot)
    """

    score: ScaledDot = field(default_factory=ScaledDot)

    def __str__(self) -> str:
        return f"softmax({self.score})"
