"""How a cost grows with the length of a text: the growths that papers promise, and the exponent of what is measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CostGrowth:
    """How a cost grows with the length n: `text` for reports, and the function."""

    text: str
    of: Callable[[int], float]

    def exponent(self, lengths: Sequence[int]) -> float:
        """The exponent that a fit over these lengths gives for exactly this growth.

        >>> N_LOG_N.exponent([4096, 16384]) > N.exponent([4096, 16384]) == 1.0
        True
        """
        return slope(lengths, [self.of(n) for n in lengths])


N = CostGrowth("n", float)
N_LOG_N = CostGrowth("n·log n", lambda n: n * math.log(n))
N_ROOT_N = CostGrowth("n·sqrt(n)", lambda n: n**1.5)
N_SQUARED = CostGrowth("n²", lambda n: float(n) ** 2)


def slope(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """The exponent of the best power law: least squares of log cost over log length.

    >>> slope([10, 100, 1000], [5.0, 500.0, 50000.0])
    2.0
    """
    x = [math.log(length) for length in lengths]
    y = [math.log(cost) for cost in costs]
    mean_x = sum(x) / len(x)
    mean_y = sum(y) / len(y)

    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    variance = sum((a - mean_x) ** 2 for a in x)
    return round(covariance / variance, 12)
