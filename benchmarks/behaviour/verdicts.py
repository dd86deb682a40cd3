"""Claims with the figures that decide whether they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A claim with the measured figures, and whether it was kept."""

    text: str
    kept: bool

    def __str__(self) -> str:
        return f"{self.text}: {'kept' if self.kept else 'missed'}"


def at_least(what: str, found: Sequence[float], limit: float) -> Verdict:
    """Every seed must reach the limit.

    >>> print(at_least("accuracy of softmax", [0.98, 1.0], 0.9))
    accuracy of softmax is 0.980 to 1.000, at least 0.9 promised: kept
    """
    return Verdict(f"{what} is {spread(found)}, at least {limit:g} promised", min(found) >= limit)


def below(what: str, found: Sequence[float], limit: float) -> Verdict:
    """Every seed must stay below the limit.

    >>> print(below("accuracy of a window", [0.1, 0.4], 0.3))
    accuracy of a window is 0.100 to 0.400, below 0.3 promised: missed
    """
    return Verdict(f"{what} is {spread(found)}, below {limit:g} promised", max(found) < limit)


def apart(what: str, more: Sequence[float], less: Sequence[float], margin: float = 0.0) -> Verdict:
    """For every seed, the first number must exceed the second by more than the margin.

    >>> print(apart("loss of fixed above strided", [2.0, 2.1], [1.0, 1.3], margin=0.5))
    loss of fixed above strided by 0.800 to 1.000, more than 0.5 promised: kept
    """
    gaps = [one - two for one, two in zip(more, less, strict=True)]
    return Verdict(f"{what} by {spread(gaps)}, more than {margin:g} promised", min(gaps) > margin)


def spread(found: Sequence[float]) -> str:
    """The smallest and the largest, as text."""
    least, most = f"{min(found):.3f}", f"{max(found):.3f}"
    return least if least == most else f"{least} to {most}"
