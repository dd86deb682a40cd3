"""Scores in lines of text: how figures are written, and what must be known about a run beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from regard_lab.training.recipes.run_folder import LearnedLoss

OWN_TEST = "the run's own test split"


def named_lines(values: Mapping[str, str]) -> list[str]:
    """A line for each value with its name.

    >>> named_lines({"loss": "1.2 nats per id"})
    ['  loss         1.2 nats per id']
    """
    return [f"  {name:<12} {value}" for name, value in values.items()]


def training_lines(trained: int | None, count: int, what: str, new: str) -> list[str]:
    """A line about what of a test was learned from, or that this is not known; none where nothing was.

    >>> training_lines(3, 3, "pairs", "new sentences")
    ['  these pairs were trained on, so the figures are better than those of new sentences']
    """
    if trained is None:
        return [f"  not known which {what} were trained on"]
    if trained == 0:
        return []
    which = f"these {what} were"
    if trained != count:
        which = f"{trained:,} of these {what} {'was' if trained == 1 else 'were'}"
    return [f"  {which} trained on, so the figures are better than those of {new}"]


def learning_lines(learned: LearnedLoss | None) -> list[str]:
    """A line about a run that has hardly learned; none for any other."""
    remark = None if learned is None else learned.remark()
    return [] if remark is None else [f"  {remark}"]


def exact_matches(share: float, count: int) -> str:
    """The share of exact matches with the number behind it.

    >>> exact_matches(598 / 600, 600), exact_matches(2999 / 3000, 3000)
    ('0.997   598 of 600', '0.999   2,999 of 3,000')
    """
    return f"{rate(share)}   {round(share * count):,} of {count:,}"


def rate(share: float) -> str:
    """A share to the nearest of three decimals, except that a share below 1 is never written as 1.000.

    >>> rate(1.0), rate(0.9999), rate(0.9966)
    ('1.000', '0.999', '0.997')
    """
    return f"{share:.3f}" if share >= 1 else f"{min(share, 0.999):.3f}"


def perplexity_of(loss: float) -> float:
    """`exp(loss)`, which is a finite number for any loss in nats."""
    return math.exp(min(loss, 700.0))
