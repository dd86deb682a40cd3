"""What every relative bias can do."""

from __future__ import annotations

import torch


class Bias:
    """Something added to a score that depends on the head and on the distance `k_pos - q_pos` alone.

    So a call needs one number a distance and head, never one a pair. Biases that learn are modules.
    """

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        """The bias at these distances, (heads or 1, distances), differentiable in what it learns.

        Args:
            distances: k_pos - q_pos, integers (distances,).
            heads: query heads.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it adds")

    @property
    def learns(self) -> bool:
        """Does it hold something that needs a gradient?"""
        return False

    def check(self, heads: int) -> None:
        """Raise a ShapeError if this bias was made for another number of heads."""
