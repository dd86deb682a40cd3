"""The positions of one call, or of a block of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from regard.errors import ArgumentError
from regard.kinds import shown


@dataclass(frozen=True)
class Grid:
    """Query rows and key columns with the positions at which they stand.

    Query row i stands at position `q_start + i`, key column j at position `j`; a block keeps these numbers.

    Args:
        q_len: rows of the whole call.
        k_len: columns of the whole call.
        q_start: position of the first query of the whole call: a number, or one for each batch row (batch,).
        rows: the rows of this block.
        keys: the columns of this block.
        device: where position tensors are made.
    """

    q_len: int
    k_len: int
    q_start: int | torch.Tensor
    rows: range
    keys: range
    device: torch.device

    @classmethod
    def whole(
        cls,
        q_len: int,
        k_len: int,
        q_start: int | torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Grid:
        """Every row and column; without `q_start` the last query meets the last key.

        >>> Grid.whole(2, 5).q_pos.flatten().tolist()
        [3, 4]
        """
        for name, size in (("q_len", q_len), ("k_len", k_len)):
            if not isinstance(size, int | torch.SymInt):
                raise ArgumentError(f"{name} is {shown(size)}; it needs a whole number, 0 or more")
        start = k_len - q_len if q_start is None else q_start
        return cls(q_len, k_len, start, range(q_len), range(k_len), _device(device))

    def block(self, rows: range, keys: range) -> Grid:
        """The part of this grid at `rows` and `keys`, which keep their numbers in the whole call."""
        return replace(self, rows=rows, keys=keys)

    @property
    def per_batch(self) -> bool:
        """Do the batch rows stand at different positions?"""
        return isinstance(self.q_start, torch.Tensor)

    @property
    def q_pos(self) -> torch.Tensor:
        """Positions of the rows: (rows, 1), or (batch, 1, rows, 1) where batch rows start apart."""
        rows = torch.arange(self.rows.start, self.rows.stop, device=self.device)[:, None]  # (rows, 1)
        if isinstance(self.q_start, torch.Tensor):
            return self.q_start.to(self.device).view(-1, 1, 1, 1) + rows  # (batch, 1, rows, 1)
        return rows + self.q_start

    @property
    def k_pos(self) -> torch.Tensor:
        """Positions of the columns: (keys,)."""
        return torch.arange(self.keys.start, self.keys.stop, device=self.device)


def _device(device: torch.device | str) -> torch.device:
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ArgumentError(f"device is {shown(device)}; it needs a device of torch, such as 'cpu' or 'cuda'") from None
