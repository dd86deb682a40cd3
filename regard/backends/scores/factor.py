"""The factor of scores, divided so that a finite query stays finite.

The factor multiplies the queries before their products with the keys, since queries have fewer numbers than scores. A
large factor would make numbers of a query infinite whose scores are finite, or would be made finite by a softcap. The
products would then be infinite, and their sums NaN or of the wrong sign.
"""

from __future__ import annotations

import math

LARGEST_EXPONENT = 126  # a power of 2 that is finite in float32


def divided_factor(factor: float) -> tuple[float, tuple[float, ...]]:
    """The part of a factor by which queries are multiplied, and powers of 2 for their products with the keys.

    A factor up to 1 multiplies queries whole; of a larger one, a part below 1 does. Powers of 2 round nothing, so that
    scores have the same bits as if queries were multiplied by the whole factor.

    >>> divided_factor(0.125)
    (0.125, ())
    >>> divided_factor(-20.0)
    (-0.625, (32.0,))
    """
    if abs(factor) <= 1:
        return factor, ()
    carried, exponent = math.frexp(factor)
    powers = []
    while exponent:
        step = min(exponent, LARGEST_EXPONENT)
        powers.append(2.0**step)
        exponent -= step
    return carried, tuple(powers)
