"""Sizes of models: rows to choose from by name (`--size`), or by the amount of data and the time for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.arguments import suggest
from regard.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of a model.

    Args:
        dim: size of the vectors.
        layers: layers; of a translator, of encoder and decoder each.
        heads: query heads; None for recurrent models, which have none.
        learning_rate: peak of the learning rate; larger models need a lower one.
    """

    dim: int
    layers: int
    heads: int | None = None
    learning_rate: float

    def settings(self) -> dict[str, Any]:
        """The settings of a training run that the size decides."""
        own = {"dim": self.dim, "layers": self.layers, "heads": self.heads, "learning_rate": self.learning_rate}
        return {name: value for name, value in own.items() if value is not None}


TRANSFORMER = {
    "tiny": Size(dim=64, layers=2, heads=4, learning_rate=4e-3),
    "small": Size(dim=128, layers=2, heads=4, learning_rate=3e-3),
    "base": Size(dim=256, layers=4, heads=8, learning_rate=1e-3),
}
RECURRENT_TRANSLATOR = {
    "tiny": Size(dim=64, layers=1, learning_rate=3e-3),
    "small": Size(dim=128, layers=1, learning_rate=2e-3),
    "base": Size(dim=256, layers=2, learning_rate=1e-3),
}
STACK = {
    "tiny": Size(dim=64, layers=2, heads=4, learning_rate=4e-3),
    "small": Size(dim=128, layers=4, heads=4, learning_rate=3e-3),
    "base": Size(dim=256, layers=6, heads=8, learning_rate=1e-3),
}
NAMES = tuple(TRANSFORMER)

# The least characters of text, minutes and steps that make a size worth its time; below all, tiny.
WORTH = {"small": (200_000, 2.0, 400), "base": (100_000_000, 240.0, 50_000)}
ACCELERATED = 30.0  # how many minutes of a CPU one minute of an accelerator is worth, about


def check_size(name: str) -> str:
    """The name, if there is such a size.

    Raises:
        ArgumentError: there is none.
    """
    if name not in NAMES:
        raise ArgumentError(f"size {name!r} does not exist; {suggest(name, NAMES)}")
    return name


def fitting_size(characters: int, minutes: float | None = None, steps: int | None = None) -> str:
    """The largest size that both the data and the budget are worth.

    Args:
        characters: of the training text.
        minutes: for training, on a CPU.
        steps: of the training.

    >>> fitting_size(1_400_000, minutes=10.0), fitting_size(1_400_000, minutes=1.0), fitting_size(20_000)
    ('small', 'tiny', 'tiny')
    """
    best = NAMES[0]
    for name, (text, time, count) in WORTH.items():
        if characters >= text and (minutes is None or minutes >= time) and (steps is None or steps >= count):
            best = name
    return best
