"""Ids as every model takes them."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError


def check_ids(ids: torch.Tensor, vocab_size: int) -> None:
    """Raise an ArgumentError if an id lies outside the vocabulary."""
    if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < vocab_size):
        raise ArgumentError(
            f"ids go from {int(ids.min())} to {int(ids.max())}; this vocabulary goes from 0 to {vocab_size - 1}"
        )
