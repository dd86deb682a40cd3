"""Ids as every model takes them."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError
from regard.kinds import shown


def check_step(ids: torch.Tensor, state: object, kind: type, axes: int = 1) -> None:
    """Raise an ArgumentError for what is no next id of each text, or no state of this model."""
    if not isinstance(ids, torch.Tensor) or ids.dim() != axes or ids.dtype not in (torch.int64, torch.int32):
        shape = "(batch,)" if axes == 1 else "(batch, added)"
        raise ArgumentError(f"ids are {shown(ids)}; they are an int64 tensor {shape}, for each text what follows")
    if not isinstance(state, kind):
        raise ArgumentError(f"state is {shown(state)}; it needs a {kind.__name__}, which the model's `start` gives")


def check_ids(ids: torch.Tensor, vocab_size: int) -> None:
    """Raise an ArgumentError if an id lies outside the vocabulary."""
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ArgumentError(f"ids are {shown(ids)}; they are a tensor of whole numbers")
    if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < vocab_size):
        raise ArgumentError(
            f"ids go from {int(ids.min())} to {int(ids.max())}; this vocabulary goes from 0 to {vocab_size - 1}"
        )
