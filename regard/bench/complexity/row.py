"""What a row of the table is made of: a promise, and a way to compute it at any length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Growth:
    """How a cost grows with the length n: `text`, as reports show it, and the function."""

    text: str
    of: Callable[[int], float]

    def exponent(self, lengths: Sequence[int]) -> float:
        """The exponent that a fit over these lengths finds if the promise is kept to the letter.

        >>> N_LOG_N.exponent([4096, 16384]) > N.exponent([4096, 16384]) == 1.0
        True
        """
        return slope(lengths, [self.of(n) for n in lengths])


N = Growth("n", float)
N_LOG_N = Growth("n·log n", lambda n: n * math.log(n))
N_ROOT_N = Growth("n·sqrt(n)", lambda n: n**1.5)
N_SQUARED = Growth("n²", lambda n: float(n) ** 2)


def slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The exponent of the power of the length that fits best: least squares of log value over log length.

    >>> slope([10, 100, 1000], [5.0, 500.0, 50000.0])
    2.0
    """
    x, y = ([math.log(value) for value in each] for each in (lengths, values))
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return round(rise / sum((a - middle_x) ** 2 for a in x), 12)


@dataclass(frozen=True)
class Call:
    """A forward pass of one length, ready to run.

    Args:
        run: computes the output.
        operations: floating-point operations that it takes, by its formula or by its plan.
        expected: the same by another path, where there is one; it may be quadratic.
    """

    run: Callable[[], torch.Tensor]
    operations: float
    expected: Callable[[], torch.Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """A layer or a mechanism, what is promised of it, and how it is computed.

    Args:
        name: as it is asked for.
        title: as reports show it.
        group: the picture that it is drawn in.
        cost: the promised cost in full, such as `n·w·d`.
        growth: of the time with the length n alone.
        sequential: operations that must wait for each other.
        path: the longest way between two positions.
        prepare: from a length the call.
        source: who promises it.
        memory: growth of the memory.
        exact: the row that it is to be cheaper than; "" for that row itself.
        correction: what popular articles say wrongly.
        longest: the length at which its memory ends the measurement.
    """

    name: str
    title: str
    group: str
    cost: str
    growth: Growth
    sequential: str
    path: str
    prepare: Callable[[int], Call]
    source: str
    memory: Growth = N
    exact: str = "softmax"
    correction: str = ""
    longest: int | None = None
