"""What caches and states are given beside keys and values: devices, paths and rows."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch

from regard.errors import ArgumentError, ShapeError
from regard.kinds import shown


def checked_device(device: torch.device | str) -> torch.device:
    """A device there is a name for.

    Raises:
        ArgumentError: anything else.
    """
    try:
        return torch.device(device)
    except (TypeError, RuntimeError, ValueError):
        raise ArgumentError(f"device is {shown(device)}; it needs a torch.device or its name, such as 'cpu'") from None


def checked_path(path: str | Path) -> Path:
    """The path of a file.

    Raises:
        ArgumentError: anything else.
    """
    if not isinstance(path, str | PathLike):
        raise ArgumentError(f"path is {shown(path)}; it needs the path of a file")
    return Path(path)


def check_rows(index: torch.Tensor, batch: int, of: str) -> None:
    """Raise unless these are rows of a batch, integers (new batch,).

    Raises:
        ShapeError: no tensor of integers with one axis.
        ArgumentError: a row that there is not.
    """
    if not isinstance(index, torch.Tensor) or index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"reorder needs integers (new batch,), not {shown(index)}")
    if index.is_meta or not index.numel():
        return
    if int(index.min()) < 0 or int(index.max()) >= batch:
        raise ArgumentError(f"reorder to rows {shown(index.tolist())}: this {of} has rows 0 to {batch - 1}")
