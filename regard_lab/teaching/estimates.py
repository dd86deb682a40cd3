"""Numbers measured on a sample, and whether a claim about them is decided."""

from __future__ import annotations

import math
from dataclasses import dataclass

Verdict = bool | None  # whether a claim holds; None where the sample is too small to tell
STANDARD_ERRORS = 2  # that a difference must exceed


@dataclass(frozen=True)
class Estimate:
    """A number measured on a sample, and its standard error.

    >>> Estimate.share(0.93, 200).above(0.9), Estimate.share(0.97, 200).above(0.9), Estimate.share(0.5, 200).above(0.9)
    (None, True, False)
    """

    value: float
    error: float

    @classmethod
    def share(cls, value: float, of: int) -> Estimate:
        """The share `value` of `of` independent cases.

        The error is sqrt(p (1 - p) / n) after two cases of each kind are added, so that it is above 0 for shares of 0
        and 1 too.

        Source: Agresti and Coull 1998.

        >>> print(Estimate.share(0.5, 196))
        0.500 ± 0.035
        """
        count = of + 4
        p = (value * of + 2) / count
        return cls(value, math.sqrt(p * (1 - p) / count))

    def times(self, factor: float) -> Estimate:
        """The estimate and its error, multiplied by a factor."""
        return Estimate(self.value * factor, self.error * abs(factor))

    def above(self, other: Estimate | float) -> Verdict:
        """Whether this is the larger one: True or False beyond two standard errors of the difference, else None."""
        if not isinstance(other, Estimate):
            other = Estimate(other, 0.0)
        difference = self.value - other.value
        error = math.hypot(self.error, other.error)
        if abs(difference) <= STANDARD_ERRORS * error:
            return None
        return difference > 0

    def below(self, other: Estimate | float) -> Verdict:
        """Whether this is the smaller one, by the same rule."""
        if not isinstance(other, Estimate):
            other = Estimate(other, 0.0)
        return other.above(self)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


def every(*verdicts: Verdict) -> Verdict:
    """Whether all hold: False if one does not, else None if one is undecided.

    >>> every(True, None), every(None, False), every(True, True)
    (None, False, True)
    """
    if False in verdicts:
        return False
    if None in verdicts:
        return None
    return True
