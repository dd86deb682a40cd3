"""The factor of scores, divided so that a finite query stays finite.

Queries are multiplied by the factor of their scores before the products with keys, since there are fewer numbers in
them. With a large factor a query would overflow though its scores do not, or though a softcap makes them finite: its
products would be infinite, and sums of them NaN or of the wrong sign.
"""

from __future__ import annotations

import math

LARGEST_EXPONENT = 126  # a power of 2 that is finite in float32


def divided_factor(factor: float) -> tuple[float, tuple[float, ...]]:
    """The part that queries carry, and powers of 2 by which the products are multiplied.

    Queries carry all of a factor up to 1, and less than 1 of a larger one. Powers of 2 round nothing, so that scores
    have the same bits as if queries carried all of it.

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
