"""What a search finds and how it is compared."""

from __future__ import annotations

from dataclasses import dataclass

from regard.arguments import real, whole
from regard.errors import ArgumentError

LARGEST_ALPHA = 30  # a longer text, to this power, is still a float
NORMALISATIONS = ("none", "average", "gnmt")


@dataclass(frozen=True)
class Hypothesis:
    """Ids of a text without BEGIN and END, the logarithm of their probability, and the score it is ranked by.

    `finished` says whether END or a stop closed it, or the limit of its length cut it off.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def normalised(log_probability: float, length: int, normalisation: str, alpha: float = 0.6) -> float:
    """The score of a hypothesis of `length` ids, END included.

    none: log p;   average: log p / length;   gnmt: log p / ((5 + length) / 6)^alpha

    Source of gnmt: Google's Neural Machine Translation System, Wu et al. 2016, equation 14.

    >>> round(normalised(-6.0, 7, "gnmt", alpha=1.0), 6)
    -3.0
    """
    real("log_probability", log_probability)
    whole("length", length, 0)
    check_normalisation(normalisation, alpha)
    if normalisation == "none":
        return log_probability
    if normalisation == "average":
        return log_probability / max(1, length)
    return log_probability / ((5 + length) / 6) ** alpha


def check_normalisation(normalisation: str, alpha: float) -> None:
    """Raise an ArgumentError for a normalisation that does not exist, or an alpha that is no small number."""
    if normalisation not in NORMALISATIONS:
        raise ArgumentError(f"normalisation={normalisation!r} does not exist; there are {', '.join(NORMALISATIONS)}")
    if abs(real("alpha", alpha)) > LARGEST_ALPHA:
        raise ArgumentError(f"alpha is {alpha}; it is a power, from -{LARGEST_ALPHA} to {LARGEST_ALPHA}")
