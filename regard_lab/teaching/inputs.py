"""Inputs of lessons: the words of a text, their vectors and modules, drawn from seeds alike on every machine."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.seeing.terminal import visible

MOST_WORDS = 120
Module = TypeVar("Module", bound=torch.nn.Module)


def words_of(text: str, least: int = 2) -> tuple[str, ...]:
    r"""Split a text into words that are safe to print.

    >>> words_of("the cat\tsleeps")
    ('the', 'cat', 'sleeps')
    """
    words = tuple(map(visible, text.split()))
    if not least <= len(words) <= MOST_WORDS:
        raise ArgumentError(
            f"the text has {count_of(len(words), 'words')}; this lesson takes {least} to {MOST_WORDS}"
        )
    return words


def embedded(words: Sequence[str], dim: int, seed: int) -> torch.Tensor:
    """A vector of standard normal numbers for each different word, (1, length, dim) in float64.

    >>> x = embedded(("the", "cat", "the"), 4, seed=0)
    >>> x.shape, torch.equal(x[:, 0], x[:, 2])
    (torch.Size([1, 3, 4]), True)
    """
    vocabulary = sorted(set(words))
    vectors = normal(seed, len(vocabulary), dim)
    numbers = [vocabulary.index(word) for word in words]
    return vectors[numbers][None]


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def seeded(seed: int, module: type[Module], *sizes: Any, **options: Any) -> Module:
    """A module in float64 with weights drawn from a seed; the state of torch's generator is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # those of other devices are not used
        return module(*sizes, **options).double()
