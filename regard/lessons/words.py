"""A sentence as vectors, without a trained model: every word its own seeded vector, the same wherever it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from regard.errors import ArgumentError
from regard.inspection.labels import visible

MOST_WORDS = 120
Module = TypeVar("Module", bound=torch.nn.Module)


def words_of(text: str | None, own: str, least: int = 2) -> tuple[str, ...]:
    r"""The words between spaces of a reader's text, or of the lesson's own, as they can be shown.

    Raises:
        ArgumentError: fewer than `least` words, or more than a figure shows.

    >>> words_of("the cat\tsleeps", own="a dog barks")
    ('the', 'cat', 'sleeps')
    """
    words = tuple(map(visible, (own if text is None else text).split()))
    if not least <= len(words) <= MOST_WORDS:
        raise ArgumentError(f"the text has {len(words)} words; this lesson takes {least} to {MOST_WORDS}")
    return words


def embedded(words: Sequence[str], dim: int, seed: int) -> torch.Tensor:
    """Standard normal numbers for each different word, (1, length, dim) in float64.

    >>> x = embedded(("the", "cat", "the"), 4, seed=0)
    >>> x.shape, torch.equal(x[:, 0], x[:, 2])
    (torch.Size([1, 3, 4]), True)
    """
    vocabulary = sorted(set(words))
    vectors = normal(seed, len(vocabulary), dim)
    return vectors[[vocabulary.index(word) for word in words]][None]


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed: int, module: type[Module], *sizes: Any, **options: Any) -> Module:
    """A module in float64 whose weights are those of a seed; torch's own generator stays where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return module(*sizes, **options).double()


def rounded(values: torch.Tensor, digits: int = 4) -> Any:
    """Nested lists, to so few digits that another processor gives the same."""
    return torch.round(values.detach().double(), decimals=digits).tolist()


def largest(values: torch.Tensor) -> float:
    """The largest absolute value; 0 of nothing."""
    return float(values.detach().abs().max()) if values.numel() else 0.0
